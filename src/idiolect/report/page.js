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

let found = ""; // what is searched for: its lines are drawn bold, the others thin

function shownTraces(place, figure) {
  const section = place.closest("section, figure");
  const off = [...section.querySelectorAll("input.band:not(:checked)")].map((box) => box.value);
  return painted(figure.data)
    .filter((trace) => !off.includes(trace.band))
    .map(({ band, group, ...trace }) => {
      const hit = found && group && group.toLowerCase().includes(found);
      if (hit && trace.line && !band) {
        const named = { ...trace.line, width: 4, color: trace.showlegend ? trace.line.color : css("--accent") };
        return { ...trace, line: named, showlegend: true };
      }
      return found && group ? { ...trace, opacity: 0.25 } : trace;
    });
}

function inOrder(place, figure) {
  // A client × client log: the round of the slider, and similar clients together if wanted.
  if (!figure.frames) return figure;
  const box = place.closest("figure");
  const slider = box.querySelector("input.round");
  const at = slider ? Number(slider.value) : 0;
  if (slider) box.querySelector("output").textContent = figure.rounds[at];
  const ordered = figure.order && box.querySelector("input.order").checked;
  const [trace] = figure.data;
  if (!ordered) return { ...figure, data: [{ ...trace, z: figure.frames[at] }] };
  const named = figure.order.map((n) => "client " + trace.y[n]);
  const z = figure.order.map((row) => figure.order.map((column) => figure.frames[at][row][column]));
  const layout = { ...figure.layout };
  for (const name of ["xaxis", "yaxis"]) layout[name] = { ...layout[name], type: "category", nticks: 10 };
  return { data: [{ ...trace, z, x: named, y: named }], layout };
}

function pointAt(place) {
  // Under the pointer a line is bold; in a crowd of grey lines that is how one finds its own.
  place.on("plotly_hover", ({ points }) => {
    if (points.length !== 1 || !points[0].data.line) return;
    const number = points[0].curveNumber;
    place.dataset.pointed = number;
    Plotly.restyle(place, { "line.width": 4 }, [number]);
  });
  place.on("plotly_unhover", () => {
    if (place.dataset.pointed === undefined) return;
    const number = Number(place.dataset.pointed);
    delete place.dataset.pointed;
    if (place.data[number]) Plotly.restyle(place, { "line.width": place.widths[number] }, [number]);
  });
}

const WIDE = 700; // pixels: a narrower plot has a legend above it instead of names at its lines
const MARKS = { solid: "●", dash: "╌╌", dot: "┈┈", dashdot: "╌·", longdash: "──", longdashdot: "─·" };
const NAME_SPACE = 15; // pixels from one name to the next

const LONGEST_NAME = 26; // letters of a name at the end of its line

function whatDiffers(name, names) {
  // `fedprox epochs=2 mu=0.1` among others with two epochs is `fedprox … mu=0.1`.
  const [first, ...own] = name.split(" ");
  const alike = names.map((other) => other.split(" ")).filter((words) => words[0] === first);
  const several = new Set(alike.map((words) => words.join(" "))).size > 1;
  const common = (word) => several && alike.every((words) => words.slice(1).includes(word));
  const words = [first, ...own.map((word) => (common(word) ? "…" : word))];
  const kept = words.filter((word, n) => word !== "…" || words[n - 1] !== "…");
  return kept.join(" ").replace(/ …$/, "");
}

function distinct(names) {
  // Short names, as `distinct` of terminal_table.py: without the settings they share, then cut in
  // the middle where they still differ; numbered if no cut keeps them apart.
  const width = LONGEST_NAME;
  const long = (name) => name.length > width;
  const shorter = names.map((name) => (long(name) ? whatDiffers(name, names) : name));
  const many = new Set(shorter).size;
  const heads = Array.from({ length: width - 2 }, (_, n) => n + 1);
  heads.sort((one, other) => Math.abs(one - width / 2) - Math.abs(other - width / 2));
  for (const head of heads) {
    const tail = width - 1 - head;
    const cut = shorter.map((name) => (long(name) ? name.slice(0, head) + "…" + name.slice(-tail) : name));
    if (new Set(cut).size === many) return cut;
  }
  const known = [...new Set(shorter)];
  return shorter.map((name) => {
    const end = "…#" + (known.indexOf(name) + 1);
    return long(name) ? name.slice(0, width - end.length) + end : name;
  });
}

// Names are cut as people read them: `&lt;` is one letter.
const asRead = (name) => name.replace(/&lt;/g, "<").replace(/&#123;/g, "{").replace(/&amp;/g, "&");
const asWritten = (name) => name.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/%\{/g, "%&#123;");
const shortNames = (traces) => distinct(traces.map((trace) => asRead(trace.name)));
const namedLines = (data) => data.filter((trace) => trace.showlegend && trace.line && trace.y.length);

function nameLines(place) {
  // A name at the end of every coloured line, moved apart where lines end close to each other.
  const { range, _length: height } = place._fullLayout.yaxis;
  const above = (y) => Math.min(1, Math.max(0, (y - range[0]) / (range[1] - range[0] || 1)));
  const traces = namedLines(place.data);
  const names = shortNames(traces).map(asWritten);
  const ends = traces.map((trace, n) => ({ trace, name: names[n], y: above(trace.y[trace.y.length - 1]) }));
  ends.sort((one, other) => one.y - other.y);
  const gap = NAME_SPACE / height;
  ends.forEach((end, n) => { if (n) end.y = Math.max(end.y, ends[n - 1].y + gap); });
  ends.reverse().forEach((end, n) => { end.y = Math.min(end.y, n ? ends[n - 1].y - gap : 1); });
  const annotations = ends.map(({ trace, name, y }) => ({
    xref: "paper", yref: "paper", x: 1, y, xanchor: "left",
    yanchor: "middle", xshift: 4, showarrow: false, align: "left",
    text: `<span style="color:${trace.line.color}">${MARKS[trace.line.dash] || "●"}</span> ${name}`,
  }));
  Plotly.relayout(place, { annotations });
}

function draw(place) {
  const figure = inOrder(place, figures[place.dataset.figure]);
  const data = shownTraces(place, figure);
  const axis = {
    gridcolor: css("--rule"), linecolor: css("--rule"), zerolinecolor: css("--soft"),
    zeroline: false, automargin: true, ticks: "", title: { standoff: 10, font: { size: 13 } },
  };
  const own = painted(figure.layout);
  const merged = (name) => ({
    ...axis, ...own[name], title: { ...axis.title, ...(own[name] || {}).title },
  });
  const layout = {
    ...own, xaxis: merged("xaxis"), yaxis: merged("yaxis"), uirevision: "same",
    font: { family: getComputedStyle(document.body).fontFamily, size: 12.5, color: css("--ink") },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 56, r: 16, t: 12, b: 48 },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
    hoverlabel: { bgcolor: css("--card"), bordercolor: css("--rule"), font: { color: css("--ink") } },
  };
  const low = place.closest("section, figure").querySelector('input.band[value="p10"]:checked');
  if (low && figure.axis_with_p10) Object.assign(layout.yaxis, figure.axis_with_p10);
  const named = figure.named_lines && place.clientWidth >= WIDE ? namedLines(data) : [];
  if (named.length) {
    const longest = Math.max(...shortNames(named).map((name) => name.length));
    Object.assign(layout, { showlegend: false, margin: { ...layout.margin, r: 36 + 7.2 * longest } });
  }
  const first = !place.data;
  Plotly.react(place, data, layout, { responsive: true, displaylogo: false, displayModeBar: false });
  place.widths = data.map((trace) => (trace.line || {}).width);
  if (named.length) nameLines(place);
  if (!first) return;
  pointAt(place);
  place.on("plotly_relayout", (changes) => {
    const moved = Object.keys(changes).some((key) => key.startsWith("yaxis") || key === "autosize");
    if (moved && place._fullLayout.annotations.length) nameLines(place);
  });
}

function sortBy(head, down) {
  const table = head.closest("table");
  const column = [...head.parentElement.children].indexOf(head);
  [...head.parentElement.children].forEach((other) => other.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const value = (row) => row.children[column].dataset.value;
  const number = (text) => (text === "" ? -Infinity : Number(text));
  const rows = [...table.tBodies[0].rows].sort((one, other) => {
    const [a, b] = [value(one), value(other)];
    const order = Number.isNaN(number(a)) || Number.isNaN(number(b))
      ? String(b).localeCompare(String(a)) : number(a) - number(b);
    return down ? -order : order;
  });
  table.tBodies[0].append(...rows);
}

function find(text) {
  found = text.trim().toLowerCase();
  document.querySelectorAll("table.summary tbody tr").forEach((row) => {
    row.hidden = found !== "" && !row.cells[0].textContent.toLowerCase().includes(found);
  });
  drawAll();
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
  found = "";
  root.querySelectorAll("section").forEach((section) => {
    const buttons = [...section.querySelectorAll(".tabs button")];
    const places = [...section.querySelectorAll(".plot[data-figure]")];
    buttons.forEach((button, chosen) => button.addEventListener("click", () => {
      buttons.forEach((other, n) => other.setAttribute("aria-pressed", String(n === chosen)));
      places.forEach((place, n) => { place.hidden = n !== chosen; });
      draw(places[chosen]);
    }));
    section.querySelectorAll("input.band").forEach((box) => box.addEventListener("change", () => {
      places.filter((place) => !place.hidden).forEach(draw);
    }));
  });
  root.querySelectorAll("figure").forEach((figure) => {
    const place = figure.querySelector(".plot");
    figure.querySelectorAll("input").forEach((input) => input.addEventListener("input", () => draw(place)));
  });
  root.querySelectorAll("table.sortable thead button").forEach((button) => {
    button.addEventListener("click", () => {
      const head = button.closest("th");
      sortBy(head, head.getAttribute("aria-sort") !== "descending");
    });
  });
  const finder = root.querySelector("input.find");
  if (finder) finder.addEventListener("input", () => find(finder.value));
  drawAll();
}

dark.addEventListener("change", drawAll);
const embedded = document.getElementById("figures");
if (embedded && !window.DecompressionStream) {
  document.querySelectorAll(".plot").forEach((place) => {
    place.replaceWith("The figures need a browser of 2023 or later.");
  });
} else if (embedded) {
  // The plotting library lies in the page compressed; as a script with the text it then has, the
  // page's policy knows it.
  const packed = document.getElementById("plotly").textContent;
  const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
  const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  new Response(plain).text().then((text) => {
    const script = document.createElement("script");
    script.textContent = text;
    document.head.append(script);
    showFigures(document, JSON.parse(embedded.textContent));
  });
}
