// Pointer and keyboard access to charts, whose marks carry their text as aria-label, and to explanations.
"use strict";
const tip = document.getElementById("tip");

function show(mark, text) {
  const box = mark.getBoundingClientRect(), x = box.x + box.width / 2, root = document.documentElement;
  tip.textContent = text;
  tip.hidden = false;
  const left = Math.min(Math.max(x - tip.offsetWidth / 2, 6), root.clientWidth - tip.offsetWidth - 6);
  const above = box.y - tip.offsetHeight - 8;
  tip.style.left = `${left + scrollX}px`;
  tip.style.top = `${(above > 0 ? above : box.bottom + 8) + scrollY}px`;
}

function hide() { tip.hidden = true; }

// The visible drawing, for the current width and axis.
function drawing(plot) { return [...plot.children].find((one) => !one.hidden && getComputedStyle(one).display !== "none"); }

function groups(element, number) { return [...element.querySelectorAll(`g[class*=" series${number}_"]`)]; }

function marks(plot, number) { return groups(drawing(plot), number).flatMap((group) => [...group.querySelectorAll("[aria-label]")]); }

function toggle(figure, button, number) {
  const visible = button.getAttribute("aria-pressed") !== "true";
  button.setAttribute("aria-pressed", String(visible));
  groups(figure, number).forEach((group) => { group.style.display = visible ? "" : "none"; });
}

function switchAxis(plot, buttons, chosen) {
  buttons.forEach((button, which) => button.setAttribute("aria-pressed", String(which === chosen)));
  [...plot.children].forEach((one) => { one.hidden = one.dataset.axis !== String(chosen); });
}

// Arrow keys select values: left and right within a series, up and down between series or rows.
function keyboard(figure, plot) {
  let series = 0, place = -1;
  const columns = Number(figure.dataset.columns ?? 0), count = figure.querySelectorAll(".keys.series button").length || 1;
  plot.addEventListener("keydown", (event) => {
    const steps = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity };
    if (event.key === "ArrowUp" || event.key === "ArrowDown") {
      const by = event.key === "ArrowUp" ? 1 : -1;
      if (columns) place += by * columns;
      else series = (series - by + count) % count;
    } else if (event.key in steps) place += steps[event.key];
    else return;
    event.preventDefault();
    const found = marks(plot, series);
    if (!found.length) return;
    place = Math.min(Math.max(place, 0), found.length - 1);
    show(found[place], found[place].getAttribute("aria-label"));
    figure.querySelector("[aria-live]").textContent = tip.textContent;
  });
}

for (const plot of document.querySelectorAll(".plot")) {
  const figure = plot.closest("figure");
  plot.addEventListener("blur", hide);
  figure.querySelectorAll(".keys.series button").forEach((button, number) => button.addEventListener("click", () => toggle(figure, button, number)));
  const axes = [...figure.querySelectorAll(".keys.switch button")];
  axes.forEach((button, which) => button.addEventListener("click", () => switchAxis(plot, axes, which)));
  keyboard(figure, plot);
}

// Explanations: a title would appear a second time, and never on focus. Cells have those of their row and column.
for (const word of document.querySelectorAll("abbr[title]")) {
  word.setAttribute("aria-description", word.title);
  word.removeAttribute("title");
}
for (const table of document.querySelectorAll("table.many")) {
  const heads = [...table.tHead.rows[0].cells].map((head) => head.textContent);
  table.classList.add("stacked");
  for (const cell of table.querySelectorAll("tbody td")) cell.dataset.label = heads[cell.cellIndex];
}

function explanation(element) {
  const cell = element.closest("tbody td"), holder = element.closest("abbr, .heads li");
  const places = cell ? [cell.parentNode.cells[0], cell.closest("table").tHead.rows[0].cells[cell.cellIndex]] : [holder];
  const words = places.map((place) => place?.matches("abbr") ? place : place?.querySelector("abbr")).filter(Boolean);
  return [...new Set(words)].map((word) => word.getAttribute("aria-description")).join("\n");
}

document.addEventListener("pointerover", (event) => {
  const mark = event.target.closest(".mark-symbol [aria-label], .mark-rect [aria-label]");
  const at = mark ?? event.target.closest("abbr, tbody td, .heads li"), text = mark?.getAttribute("aria-label") ?? (at && explanation(at));
  if (text) show(at, text); else hide();
});
document.addEventListener("focusin", (event) => { if (event.target.matches("abbr")) show(event.target, explanation(event.target)); else hide(); });
document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
