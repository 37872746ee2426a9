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

// The visible drawing, for the current width.
function drawing(plot) { return [...plot.children].find((one) => getComputedStyle(one).display !== "none"); }

function groups(element, number) { return [...element.querySelectorAll(`g[class*=" series${number}_"]`)]; }

function marks(plot, number) { return groups(drawing(plot), number).flatMap((group) => [...group.querySelectorAll("[aria-label]")]); }

function toggle(figure, button, number) {
  const visible = button.getAttribute("aria-pressed") !== "true";
  button.setAttribute("aria-pressed", String(visible));
  groups(figure, number).forEach((group) => { group.style.display = visible ? "" : "none"; });
}

// Arrow keys select values: left and right within a series, up and down between series.
function keyboard(figure, plot) {
  let series = 0, place = -1;
  const count = Number(plot.dataset.series);
  plot.addEventListener("keydown", (event) => {
    const steps = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity };
    if (event.key === "ArrowUp" || event.key === "ArrowDown") {
      series = (series + (event.key === "ArrowUp" ? -1 : 1) + count) % count;
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
  const mark = event.target.closest(".mark-symbol [aria-label]");
  const at = mark ?? event.target.closest("abbr, tbody td, .heads li"), text = mark?.getAttribute("aria-label") ?? (at && explanation(at));
  if (text) show(at, text); else hide();
});
document.addEventListener("focusin", (event) => { if (event.target.matches("abbr")) show(event.target, explanation(event.target)); else hide(); });
document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });

// A copied command is one that was seen: no clipboard API on file:// in every browser.
for (const button of document.querySelectorAll("button.copy")) {
  button.addEventListener("click", () => {
    const range = document.createRange();
    range.selectNodeContents(button.previousElementSibling);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    button.textContent = document.execCommand("copy") ? "copied" : "selected";
  });
}

// Tables of the page's data. A row is {cells, search, kinds, dot, open}; `open` makes what the row shows below.
const MOST_ROWS = 60, PAIR = "near-copy pair";
const make = (name, text = "", values = {}) => Object.assign(document.createElement(name), { textContent: text }, values);
const threeDigits = (value) => value.toLocaleString("en", { minimumFractionDigits: 3, maximumFractionDigits: 3 });
const shown = (value) => value === null ? "–" : typeof value === "number" && !Number.isInteger(value) ? threeDigits(value) : value.toLocaleString("en");

class Rows {
  constructor(key, rows) {
    Object.assign(this, { key, rows, body: document.getElementById(key), column: -1, down: true, most: MOST_ROWS });
    this.search = document.querySelector(`[data-search="${key}"]`);
    this.filter = document.querySelector(`[data-filter="${key}"]`);
    this.search.addEventListener("input", () => this.draw());
    this.filter?.addEventListener("change", () => this.draw());
    this.heads = [...this.body.closest("table").tHead.rows[0].cells];
    this.heads.forEach((head, column) => head.firstChild.addEventListener("click", () => this.sort(column)));
    this.draw();
  }

  sort(column) {
    this.down = this.column === column ? !this.down : true;
    this.column = column;
    this.heads.forEach((head, at) => head.setAttribute("aria-sort", at !== column ? "none" : this.down ? "descending" : "ascending"));
    this.draw();
  }

  draw() {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean), kind = this.filter?.value ?? "";
    const found = this.rows.filter((row) => (!kind || row.kinds.includes(kind)) && words.every((word) => row.search.includes(word)));
    if (this.column >= 0) {
      const value = (row) => row.cells[this.column], sign = this.down ? -1 : 1;
      found.sort((a, b) => (value(a) === null) - (value(b) === null) || sign * (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0));
    }
    const named = (row) => (row.name ?? row.cells[0]) === this.search.value;
    found.sort((a, b) => named(b) - named(a));
    document.getElementById(`${this.key}-count`).textContent = `${found.length.toLocaleString("en")} of ${this.rows.length.toLocaleString("en")}`;
    this.body.replaceChildren(...found.slice(0, this.most).map((row) => this.line(row)));
    if (kind === PAIR) this.body.querySelectorAll("td:first-child button").forEach((button) => button.click());
    if (found.length > this.most) {
      const more = make("button", "more", { className: "more" }), line = make("tr"), cell = make("td", "", { colSpan: this.heads.length });
      more.addEventListener("click", () => { this.most *= 3; this.draw(); });
      cell.append(more);
      line.append(cell);
      this.body.append(line);
    }
  }

  line(row) {
    const line = make("tr"), button = make("button", row.cells[0], { type: "button", dir: "auto", name: row.name ?? "" });
    button.setAttribute("aria-expanded", "false");
    button.addEventListener("click", () => {
      const open = button.getAttribute("aria-expanded") !== "true";
      button.setAttribute("aria-expanded", String(open));
      if (!open) { line.nextSibling.remove(); return; }
      const below = make("tr"), cell = make("td", "", { colSpan: row.cells.length, className: "opened" });
      cell.append(...row.open());
      below.append(cell);
      line.after(below);
    });
    row.cells.forEach((value, column) => {
      const cell = make("td", column ? shown(value) : "");
      if (!column) cell.append(button);
      else if (row.dot && column === 1 && value !== null) cell.append(row.dot());
      line.append(cell);
    });
    return line;
  }

  // Show the row with this name, whatever was searched before.
  open(name) {
    this.search.value = name;
    if (this.filter) this.filter.value = "";
    this.draw();
    const button = this.body.querySelector("button");
    if (button?.getAttribute("aria-expanded") === "false") button.click();
    button?.scrollIntoView({ block: "center" });
    button?.focus();
  }
}

function groupRow([kind, name, before, after, retention, steps], names) {
  const dot = () => {
    const box = make("span", "", { className: "dot" }), mark = make("i"), place = Math.min(Math.max(Math.log2(retention || 0.01), -4), 4);
    const size = 4 + 2 * Math.log10(before + 1);
    mark.style.cssText = `left:${(100 * (place + 4)) / 8}%;width:${size}px;height:${size}px`;
    box.append(mark);
    return box;
  };
  const open = () => [make("p", steps.map((count, at) => `${names[at]}: ${count.toLocaleString("en")}`).join(" → "))];
  return { cells: [name, retention, before, after], search: name.toLowerCase(), kinds: [kind], dot, open };
}

// Why a document is selected or not: what quality adds to its logit, and all else, less the threshold.
const signed = (value) => `${value < 0 ? "−" : "+"}${threeDigits(Math.abs(value))}`;
function why(state, logit, part, facts) {
  if (logit === null) return `Dropped before selection: ${facts}.`;
  const sum = part === null || part === undefined ? "" : ` = quality ${signed(part)} (against the mean candidate of the shard) and all other terms, less the threshold, ${signed(logit - part)}`;
  return `Why: ${state}. Logit ${signed(logit)}${sum}; documents above 0 are kept, unless a limit applies.`;
}

function documentRow([id, state, kind, quality, logit, nearest, cosine, characters, text, part, nearestText, facts], texts, near) {
  const open = () => {
    const parts = [make("p", `${kind} · ${facts}`, { className: "facts" }), make("p", why(state, logit, part, kind), { className: "facts" })];
    const pair = make("div", "", { className: "pair" });
    const side = (what, words) => {
      const box = make("div");
      box.append(make("p", what, { className: "facts" }), make("p", words, { className: "text", dir: "auto" }));
      pair.append(box);
    };
    side(`This document: ${id}`, text ?? "(no text)");
    if (nearest !== null) {
      const what = cosine === null ? "Near-duplicate of" : `Nearest document that was selected, cosine ${cosine.toFixed(3)}:`;
      side(`${what} ${nearest}`, texts.get(nearest) ?? nearestText ?? "(its text is not on this page: other pairs are more alike)");
    }
    return [...parts, pair];
  };
  const begins = text?.trim().replace(/\s+/g, " ").slice(0, 100) || id;
  return { name: id, cells: [begins, state, quality, logit, ...(near === null ? [] : [cosine]), characters], search: `${id} ${nearest ?? ""} ${kind} ${text ?? ""}`.toLowerCase(), kinds: [state, kind, near !== null && cosine >= near ? PAIR : ""], open };
}

async function tables() {
  const packed = document.getElementById("data");
  if (!packed) return;
  const bytes = Uint8Array.from(atob(packed.textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const data = JSON.parse(await new Response(stream).text());
  if (document.getElementById("groups")) new Rows("groups", data.groups.map((row) => groupRow(row, data.steps)));
  const texts = new Map(data.documents.map((row) => [row[0], row[8]]));
  const read = new Rows("read", data.documents.map((row) => documentRow(row, texts, data.near)));
  document.getElementById("map")?.addEventListener("click", (event) => {
    const said = event.target.closest("[aria-label]")?.getAttribute("aria-label");
    if (said) read.open(said.slice(said.indexOf(": ") + 2));
  });
}
tables();
