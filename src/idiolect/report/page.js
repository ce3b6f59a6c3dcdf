"use strict";
// The figures of a report: drawn once in the self-contained page, again and again in the live one.
let figures = [];
const dark = window.matchMedia("(prefers-color-scheme: dark)");

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function scale() {
  return dark.matches
    ? [[0, "#1a1d22"], [0.5, "#2f5fa8"], [1, "#cfe3ff"]]
    : [[0, "#f4f7fb"], [0.5, "#6f9fe0"], [1, "#123a78"]];
}

const COLOURS = ["color", "fillcolor", "colorscale"];  // elsewhere a `$3` is somebody's name

function painted(value, key) {
  if (Array.isArray(value)) {
    return typeof value[0] === "number" ? value : value.map((part) => painted(part, key));
  }
  if (value && typeof value === "object") {
    return Object.fromEntries(Object.entries(value).map(([name, part]) => [name, painted(part, name)]));
  }
  if (!COLOURS.includes(key)) return value;
  if (value === "$scale") return scale();
  if (value === "$axis") return css("--soft");
  const colour = typeof value === "string" && value.match(/^\$(\d)(?:@([\d.]+))?$/);
  if (!colour) return value;
  const hex = css("--c" + colour[1]);
  if (!colour[2]) return hex;
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  return `rgba(${r},${g},${b},${colour[2]})`;
}

function draw(place) {
  const figure = figures[place.dataset.figure];
  const control = place.closest("section").querySelector("input.band");
  const banded = !control || control.checked;
  const data = painted(figure.data)
    .filter((trace) => banded || !trace.band)
    .map((trace) => {
      const { band, ...rest } = trace;
      if (!banded) delete rest.fill;
      return rest;
    });
  const axis = {
    gridcolor: css("--rule"), linecolor: css("--rule"), zerolinecolor: css("--soft"),
    zeroline: false, automargin: true, ticks: "", title: { standoff: 10, font: { size: 13 } },
  };
  const own = painted(figure.layout);
  const merged = (name) => ({
    ...axis, ...own[name], title: { ...axis.title, ...(own[name] || {}).title },
  });
  const layout = {
    ...own, xaxis: merged("xaxis"), yaxis: merged("yaxis"),
    font: { family: getComputedStyle(document.body).fontFamily, size: 12.5, color: css("--ink") },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 56, r: 16, t: 12, b: 48 },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
    hoverlabel: { bgcolor: css("--card"), bordercolor: css("--rule"), font: { color: css("--ink") } },
  };
  Plotly.react(place, data, layout, { responsive: true, displaylogo: false, displayModeBar: false });
}

function drawAll() {
  document.querySelectorAll(".dot").forEach((dot) => {
    dot.style.background = css("--c" + dot.dataset.colour);
  });
  document.querySelectorAll(".plot:not([hidden])").forEach((place) => {
    if (place.dataset.figure) draw(place);
  });
}

function showFigures(root, drawn) {
  figures = drawn;
  root.querySelectorAll("section").forEach((section) => {
    const buttons = [...section.querySelectorAll(".tabs button")];
    const places = [...section.querySelectorAll(".plot[data-figure]")];
    buttons.forEach((button, chosen) => button.addEventListener("click", () => {
      buttons.forEach((other, n) => other.setAttribute("aria-pressed", String(n === chosen)));
      places.forEach((place, n) => { place.hidden = n !== chosen; });
      draw(places[chosen]);
    }));
    const band = section.querySelector("input.band");
    if (band) band.addEventListener("change", () => places.filter((p) => !p.hidden).forEach(draw));
  });
  drawAll();
}

dark.addEventListener("change", drawAll);
const embedded = document.getElementById("figures");
if (embedded) showFigures(document, JSON.parse(embedded.textContent));
