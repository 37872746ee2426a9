// Draws the charts of the page. Text from the data only ever becomes textContent.
"use strict";
const charts = JSON.parse(document.getElementById("charts").textContent);
const tip = document.getElementById("tip");
const symbols = {
  circle: '<circle cx="6" cy="6" r="4.5"/>', square: '<path d="M2 2h8v8H2z"/>', diamond: '<path d="M6 .5 11.5 6 6 11.5 .5 6z"/>',
  cross: '<path d="M4 1h4v3h3v4H8v3H4V8H1V4h3z"/>', "triangle-up": '<path d="M6 1l5.500 10H.5z"/>', x: '<path d="M3 1l3 3 3-3 2 2-3 3 3 3-2 2-3-3-3 3-2-2 3-3-3-3z"/>',
  star: '<path d="M6 .5l1.600 3.600 3.900.400-2.900 2.600.800 3.900L6 9l-3.400 2 .8-3.900L.5 4.500l3.900-.4z"/>',
};
const dashes = { solid: "", dash: "4 2", dot: "1.500 2", dashdot: "4 1.500 1 1.500" };

function style(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }

function themed(layout) {
  const grid = style("--line"), ink = style("--ink");
  const axis = { gridcolor: grid, linecolor: grid, tickcolor: grid };
  return { ...layout, font: { color: ink, size: 12, family: "system-ui, sans-serif" }, xaxis: { ...layout.xaxis, ...axis }, yaxis: { ...layout.yaxis, ...axis } };
}

function told(chart, curve, point) {
  const trace = chart.traces[curve];
  if (trace.type === "heatmap") {
    const [row, column] = point, share = trace.z[row][column], count = trace.customdata[row][column];
    const where = `quality tenth ${row + 1}, density tenth ${column + 1}`;
    return share === null ? `${where}: no document` : `${where}: ${(100 * share).toFixed(1)} % of ${count} kept`;
  }
  const name = chart.names[curve], text = chart.hover[curve][point];
  if (text !== undefined) return chart.traces.length > 1 || chart.bars ? `${name}: ${text}` : text;
  const second = chart.other[curve][point], value = Number(trace.y[point].toPrecision(5));
  return second === undefined ? `${name}: ${trace.x[point]}, ${value}` : `${name}: step ${trace.x[point]}, ${second} s: ${value}`;
}

function show(text, box) {
  tip.textContent = text;
  tip.hidden = false;
  const width = tip.offsetWidth, height = tip.offsetHeight;
  const left = Math.min(Math.max(box.x - width / 2, 6), document.documentElement.clientWidth - width - 6);
  const above = box.y - height - 12;
  tip.style.left = `${left + scrollX}px`;
  tip.style.top = `${(above > 0 ? above : box.y + 16) + scrollY}px`;
}

// Where a value is on the screen.
function place(plot, chart, curve, point) {
  const { xaxis, yaxis } = plot._fullLayout, box = plot.getBoundingClientRect(), trace = plot.data[curve];
  const [x, y] = trace.type === "heatmap" ? [trace.x[point[1]], trace.y[point[0]]] : [trace.x[point], trace.y[point]];
  return { x: box.x + xaxis._offset + xaxis.d2p(x), y: box.y + yaxis._offset + yaxis.d2p(y) };
}

function draw(chart) {
  const figure = document.getElementById(chart.key), plot = figure.querySelector(".plot");
  const layout = {
    ...chart.layout, margin: { l: 64, r: 12, t: 10, b: 52 }, showlegend: false, dragmode: false, hovermode: "closest",
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
  };
  if (chart.layout.yaxis.showticklabels === false) layout.margin.l = 30;
  const settings = { displayModeBar: false, responsive: true, doubleClick: false, scrollZoom: false };
  Plotly.newPlot(plot, chart.traces, themed(layout), settings);
  plot.on("plotly_hover", (event) => {
    const { curveNumber, pointNumber } = event.points[0];
    show(told(chart, curveNumber, pointNumber), place(plot, chart, curveNumber, pointNumber));
  });
  plot.on("plotly_unhover", () => { tip.hidden = true; });
  const keys = figure.querySelector(".keys.series");
  if (keys) chart.traces.forEach((trace, number) => keys.append(toggle(plot, chart, trace, number)));
  const axes = figure.querySelector(".keys.switch");
  if (axes) [...axes.children].forEach((button, which) => button.addEventListener("click", () => {
    [...axes.children].forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
    const values = chart.traces.map((trace, number) => (which ? chart.other[number] : trace.x));
    Plotly.update(plot, { x: values }, { "xaxis.title.text": chart.labels[which] });
  }));
  keyboard(plot, chart);
  plot.addEventListener("blur", () => { tip.hidden = true; });
}

function toggle(plot, chart, trace, number) {
  const button = document.createElement("button"), colour = trace.marker?.color ?? trace.line?.color;
  button.type = "button";
  button.setAttribute("aria-pressed", "true");
  const lines = trace.mode && trace.mode.startsWith("lines");
  button.innerHTML = lines
    ? `<svg width="22" height="12" aria-hidden="true"><path d="M0 6h22" stroke="${colour}" stroke-width="2.500" stroke-dasharray="${dashes[trace.line.dash]}"/></svg>`
    : `<svg width="12" height="12" aria-hidden="true" fill="${colour}">${symbols[trace.marker?.symbol] ?? symbols.square}</svg>`;
  button.append(chart.names[number]);
  button.addEventListener("click", () => {
    const visible = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(visible));
    Plotly.restyle(plot, { visible }, [number]);
  });
  return button;
}

// Arrow keys walk over the values: left and right along a series, up and down between them.
function keyboard(plot, chart) {
  let curve = 0, point = -1;
  const heat = chart.traces[0]?.type === "heatmap";
  const size = () => (heat ? chart.traces[0].z.length * chart.traces[0].z[0].length : chart.traces[curve].y.length);
  plot.addEventListener("keydown", (event) => {
    const steps = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity };
    if (event.key === "Escape") { tip.hidden = true; return; }
    if (event.key === "ArrowUp" || event.key === "ArrowDown") {
      const by = event.key === "ArrowUp" ? -1 : 1;
      if (heat) point -= by * chart.traces[0].z[0].length;
      else curve = (curve + by + chart.traces.length) % chart.traces.length;
    } else if (event.key in steps) point += steps[event.key];
    else return;
    event.preventDefault();
    point = Math.min(Math.max(point, 0), size() - 1);
    const width = heat ? chart.traces[0].z[0].length : 1;
    const at = heat ? [Math.floor(point / width), point % width] : point;
    const text = told(chart, curve, at);
    show(text, place(plot, chart, curve, at));
    figureSays(plot, text);
  });
}

function figureSays(plot, text) { plot.parentElement.querySelector("[aria-live]").textContent = text; }

function retheme() {
  document.querySelectorAll(".js-plotly-plot").forEach((plot) => {
    const { font, xaxis, yaxis } = themed({ xaxis: {}, yaxis: {} }), changes = { font };
    for (const [name, axis] of [["xaxis", xaxis], ["yaxis", yaxis]]) for (const key in axis) changes[`${name}.${key}`] = axis[key];
    Plotly.relayout(plot, changes);
  });
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", retheme);

// The text comes first; charts follow one by one, so that the page stays responsive.
const waiting = [...charts];
function next() {
  if (waiting.length) { draw(waiting.shift()); setTimeout(next, 0); }
  else document.documentElement.dataset.drawn = String(charts.length);
}
addEventListener("load", () => requestAnimationFrame(() => setTimeout(next, 0)));
