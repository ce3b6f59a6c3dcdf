"use strict";
// One run, or several compared: the views of the report, kept up to date.

function control(run) {
  const act = (what, text) => make("button", { class: "button", type: "button", onclick: async (event) => {
    event.target.disabled = true;
    try { await ask("/api/" + what, { run: run.id }, true); } catch (error) { link.textContent = error.message; }
  } }, text);
  if (run.state === "running") return act("stop", "End after this round");
  if (run.state === "stopped") return act("resume", "Continue");
  return null;
}

function heads(runs) {
  // Among several runs only those that still change, or cannot be read, need a card of their own.
  const shown = runs.length === 1 ? runs : runs.filter((run) => run.state !== "finished");
  return make("ul", { class: "bar", id: "runs" }, ...shown.map((run) => make("li", { class: "card" },
    make("h3", {}, run.label), make("p", {}, stateOf(run), " ", progressOf(run)),
    run.problem ? make("p", { class: "problem-text" }, run.problem) : null,
    run.federation ? make("p", {}, make("a", { href: "#/sites?run=" + encodeURIComponent(run.id) }, "its sites")) : null,
    control(run), runs.length === 1 && run.state !== "problem" ? tagging(run) : null)));
}

function tagging(run) {
  const field = make("input", {
    type: "text", value: run.tags.join(", "), placeholder: "first try, paper", "aria-label": "tags, with commas between",
  });
  const keep = async (event) => {
    event.preventDefault();
    try {
      const { tags } = await ask("/api/tags", { run: run.id, tags: field.value }, true);
      field.value = tags.join(", ");
      link.textContent = "tags kept";
    } catch (error) { link.textContent = error.message; }
  };
  return make("form", { class: "tagging", onsubmit: keep }, make("label", {}, "tags ", field), " ",
    make("button", { class: "button" }, "Keep tags"));
}

function clientTable(id, clients, metric) {
  if (!clients || !clients.client) return null;
  const names = Object.keys(clients).filter((name) => clients[name].some((value) => value !== null));
  const isShare = (name) => metric.share && name.includes(metric.name);
  const shown = (name, value) => (value === null ? "–" : isShare(name) ? percent(value) : String(value));
  const place = make("div", { class: "plot", hidden: true, id: "client-plot" });
  const row = (client, n) => make("tr", {}, ...names.map((name, column) =>
    column ? make("td", {}, shown(name, clients[name][n]))
      : make("th", { scope: "row" }, make("button", {
        class: "button", type: "button", "aria-label": "client " + client + " over rounds",
        onclick: () => oneClient(id, client, place).catch(fail),
      }, String(client)))));
  const body = make("tbody", {});
  const steps = make("div", {});
  const show = (start) => {
    const few = clients.client.slice(start, start + PAGE);
    body.replaceChildren(...few.map((client, n) => row(client, start + n)));
    steps.replaceChildren(...(clients.client.length > PAGE ? [pages(start, clients.client.length, show)] : []));
  };
  show(0);
  return make("section", {}, make("h2", {}, "Clients, last round"),
    make("p", { class: "note" }, "Press a client's number to see it over the rounds."), place,
    make("div", { class: "tall", tabindex: "0", role: "region", "aria-label": "clients" },
      make("table", {}, make("thead", {}, make("tr", {}, ...names.map((name) =>
        make("th", { scope: "col" }, name.replaceAll("_", " ") + (isShare(name) ? ", %" : ""))))), body)), steps);
}

async function oneClient(id, client, place) {
  const { rounds, metric } = await ask("/api/client", { run: id, client });
  const scale = metric.share ? 100 : 1;
  const line = (series, text, colour) => ({
    type: "scatter", mode: "lines", name: text, x: rounds.round,
    y: rounds[`${metric.name}_${series}`].map((value) => (value === null ? null : scale * value)),
    line: { color: "$" + colour },
  });
  place.hidden = false;
  place.dataset.figure = figures.length;
  figures.push({
    data: [line("before", `client ${client}, delivered`, 0),
      line("after", "after its own training", 1)],
    layout: { xaxis: { title: { text: "round" } }, yaxis: { title: { text: metric.name + (metric.share ? ", %" : "") } } },
  });
  draw(place);
  place.scrollIntoView({ block: "nearest" });
}

function matrixSlider(id, matrices) {
  if (!matrices.length) return null;
  const place = make("div", { class: "plot", id: "matrix-plot" });
  const said = make("output", {});
  const slider = make("input", { type: "range", min: 0, value: 0, "aria-label": "round of the matrix" });
  const which = make("select", { "aria-label": "matrix" }, ...matrices.map((m, n) => make("option", { value: n }, m.name)));
  const together = make("input", { type: "checkbox", onchange: () => show().catch(fail) });
  const at = figures.length;
  figures.push(null);
  let wanted = 0;
  const show = async () => {
    const logged = matrices[which.value];
    slider.max = logged.rounds.length - 1;
    const round = logged.rounds[Math.min(slider.value, slider.max)];
    said.textContent = `round ${round}`;
    const turn = ++wanted;
    const asked = { run: id, name: logged.name, round, order: together.checked ? "1" : "0" };
    const found = await ask("/api/matrix", asked);
    if (turn !== wanted) return;
    const names = found.clients.map((client) => "client " + client);
    const order = found.order || names.map((_, n) => n);
    const z = found.order ? order.map((row) => order.map((column) => found.values[row][column])) : found.values;
    const square = found.size[0] === found.size[1];
    const axis = together.checked ? { type: "category", nticks: 10 } : {};
    const axes = together.checked ? order.map((n) => names[n]) : found.clients;
    figures[at] = {
      data: [{ type: "heatmap", z, x: square ? axes : undefined, y: axes, hoverongaps: false, colorscale: "$scale", colorbar: { thickness: 10, outlinewidth: 0 },
        hovertemplate: "row %{y}, column %{x}: %{z:.4g}<extra></extra>" }],
      layout: {
        xaxis: { title: { text: "client" }, ...axis },
        yaxis: { title: { text: "client" }, autorange: "reversed", ...axis },
      },
    };
    place.dataset.figure = at;
    draw(place);
  };
  slider.addEventListener("input", () => show().catch(fail));
  which.addEventListener("change", () => { slider.value = 1e9; show().catch(fail); });
  const section = make("section", { id: "matrix" }, make("h2", {}, "Client by client, over the rounds"),
    make("div", { class: "bar" }, which, slider, said,
      make("label", {}, together, " similar clients together")), place);
  slider.max = matrices[0].rounds.length - 1;
  slider.value = slider.max;
  return { section, show };
}

let plotting = null;

function plotlyLoaded() {
  // Four megabytes of script, which the list of runs does without.
  plotting = plotting || new Promise((done, failed) => {
    document.head.append(make("script", {
      src: "/static/plotly.js", onload: done, onerror: () => failed(new Error("plotly.js did not come")),
    }));
  });
  return plotting;
}

function afterPaint() {
  // A page in the background paints nothing; it goes on after a moment.
  return new Promise((done) => {
    requestAnimationFrame(() => setTimeout(done));
    setTimeout(done, 200);
  });
}

async function showReport(ids) {
  const script = plotlyLoaded(); // while the server reads the run
  script.catch(() => {}); // said below, where it is waited for
  const found = await ask("/api/report", ids.map((id) => ["run", id]));
  const body = make("div", { id: "views" });
  body.innerHTML = found.html;
  content.replaceChildren(make("h1", {}, found.title), heads(found.runs), body);
  await afterPaint(); // words and numbers do not wait for the script, which keeps the page busy
  await script;
  if (!body.isConnected) return; // somebody went on to another page
  showFigures(body, found.figures);
  if (ids.length === 1) {
    const clients = clientTable(ids[0], found.clients, found.metric);
    if (clients) body.append(clients);
    const matrix = matrixSlider(ids[0], found.matrices);
    if (matrix) { body.append(matrix.section); await matrix.show(); }
  }
  document.title = found.title;
  view = { kind: "report", ids, runs: found.runs, busy: false };
}

async function updateReport(changed) {
  const ours = changed.runs.filter((run) => view.ids.includes(run.id));
  if (!ours.length || view.busy) return;
  const now = view;
  now.busy = true;
  now.runs = now.runs.map((run) => ours.find((one) => one.id === run.id) || run);
  try {
    const found = await ask("/api/report", now.ids.map((id) => ["run", id]));
    if (view !== now) return;
    document.getElementById("runs").replaceWith(heads(found.runs));
    refill(found);
  } finally { now.busy = false; }
}

function refill(found) {
  // New numbers into the views that are there: tabs, sliders, scrolling and focus stay as they are.
  const made = document.createElement("div");
  made.innerHTML = found.html;
  const tables = made.querySelectorAll("table.summary tbody");
  document.querySelectorAll("#views table.summary tbody").forEach((old, n) => tables[n] && old.replaceWith(tables[n]));
  const sorted = document.querySelector("#views table.summary th[aria-sort]");
  if (sorted) sortBy(sorted, sorted.getAttribute("aria-sort") === "descending");
  const verdict = made.querySelector(".verdict");
  if (verdict) document.querySelector("#views .verdict").replaceWith(verdict);
  const notice = document.querySelector("#views > .notice");
  const later = made.querySelector(":scope > .notice");
  if (notice && later) notice.replaceWith(later); else if (notice) notice.remove();
  const same = made.querySelectorAll("[data-figure]").length
    === document.querySelectorAll("#views [data-figure]:not(#client-plot):not(#matrix-plot)").length;
  if (!same) { showReport(view.ids).catch(fail); return; }
  found.figures.forEach((figure, n) => { figures[n] = figure; });
  drawAll();
}
