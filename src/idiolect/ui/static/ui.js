"use strict";
// The live page. Everything from the server is put in as text, never as markup; the one exception is
// the report's HTML, which the server made and escaped.
const content = document.getElementById("content");
const link = document.getElementById("link");
const key = document.querySelector("meta[name=idiolect-key]").content;
const chosen = new Set();
const list = { query: "", state: "", sort: "changed", down: false, offset: 0 };
let view = null; // what is shown: {runs: Set of ids it depends on, refresh: function}

function make(tag, about = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(about)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "class") node.className = value;
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

async function ask(path, values = [], change = false) {
  const address = path + "?" + new URLSearchParams(values);
  const how = change ? { method: "POST", headers: { "x-idiolect": key } } : {};
  const answer = await fetch(address, how);
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.error || "the server refused");
  return body;
}

const percent = (value) => (value === null ? "–" : (100 * value).toFixed(1));
const address = (ids) => "#/report?" + new URLSearchParams(ids.map((id) => ["run", id]));

function duration(seconds) {
  if (seconds === null) return "";
  if (seconds < 60) return Math.ceil(seconds) + " s";
  if (seconds < 3600) return Math.ceil(seconds / 60) + " min";
  return (seconds / 3600).toFixed(1) + " h";
}

function ago(time) {
  return time ? duration(Math.max(0, Date.now() / 1000 - time)) + " ago" : "–";
}

function stateOf(run) {
  return make("span", { class: "state " + run.state }, run.state);
}

function progressOf(run) {
  if (run.state === "problem") return make("span", { class: "problem-text" }, run.problem);
  const text = `${run.round} of ${run.rounds}` + (run.eta ? `, ${duration(run.eta)} to go` : "");
  const bar = make("progress", { max: run.rounds || 1, value: run.round, "aria-label": text });
  return make("span", {}, bar, " ", text);
}

function fail(error) {
  content.replaceChildren(make("p", { class: "notice", role: "alert" }, String(error.message || error)));
}

// --- the list of runs ---

const COLUMNS = [
  ["name", "run"], ["state", "state"], ["method", "method"], ["data", "data"], [null, "seed"],
  [null, "round"], ["accuracy", "accuracy %"], ["changed", "changed"],
];

function rowOf(run) {
  const box = make("input", {
    type: "checkbox", "aria-label": "choose " + run.label, checked: chosen.has(run.id),
    onchange: (event) => { chosen[event.target.checked ? "add" : "delete"](run.id); tellChosen(); },
  });
  return make("tr", { "data-run": run.id },
    make("td", {}, box),
    make("td", { class: "name" }, make("a", { href: address([run.id]) }, run.label)),
    make("td", {}, stateOf(run)),
    make("td", {}, run.method),
    make("td", {}, run.data + (run.split ? ", " + run.split : "")),
    make("td", { class: "number" }, run.seed === null ? "" : String(run.seed)),
    make("td", {}, progressOf(run)),
    make("td", { class: "number" }, percent(run.accuracy)),
    make("td", {}, ago(run.changed)),
  );
}

function tellChosen() {
  const button = document.getElementById("compare");
  if (!button) return;
  button.disabled = chosen.size < 2;
  button.textContent = chosen.size < 2 ? "Compare (choose two or more)" : `Compare ${chosen.size} runs`;
}

function listHead(body) {
  const heads = COLUMNS.map(([sort, text]) => {
    const aria = sort === list.sort ? (list.down ? "ascending" : "descending") : null;
    const inside = sort === null ? text : make("button", { type: "button", onclick: () => {
      list.down = list.sort === sort && !list.down;
      Object.assign(list, { sort, offset: 0 });
      showRuns();
    } }, text);
    return make("th", { scope: "col", "aria-sort": aria }, inside);
  });
  return make("div", { class: "scroll" }, make("table", { class: "runs" },
    make("thead", {}, make("tr", {}, make("th", { scope: "col" }, make("span", { class: "soft" }, " ")), ...heads)),
    body));
}

function pages(total) {
  const step = (by) => () => { list.offset += by; showRuns(); };
  const last = Math.min(list.offset + 100, total);
  return make("div", { class: "pages" },
    make("button", { class: "button", type: "button", disabled: list.offset === 0, onclick: step(-100) }, "Earlier"),
    make("span", {}, total ? `${list.offset + 1} to ${last} of ${total}` : "no run"),
    make("button", { class: "button", type: "button", disabled: last >= total, onclick: step(100) }, "Later"));
}

async function showRuns() {
  const values = { ...list, down: list.down ? "1" : "0" };
  const found = await ask("/api/runs", values);
  const body = make("tbody", {}, ...found.runs.map(rowOf));
  let slow = null;
  const search = make("input", {
    type: "search", placeholder: "method, data, name …", "aria-label": "search runs", value: list.query,
    oninput: (event) => {
      list.query = event.target.value;
      list.offset = 0;
      clearTimeout(slow);
      slow = setTimeout(() => showRuns().then(() => {
        const again = content.querySelector("input[type=search]");
        again.focus();
        again.setSelectionRange(again.value.length, again.value.length);
      }).catch(fail), 250);
    },
  });
  const states = ["", "running", "stopped", "finished", "problem"].map((state) =>
    make("option", { value: state, selected: state === list.state }, state || "all states"));
  const filter = make("select", { "aria-label": "state", onchange: (event) => {
    Object.assign(list, { state: event.target.value, offset: 0 });
    showRuns().catch(fail);
  } }, ...states);
  const compare = make("button", {
    class: "button main", id: "compare", type: "button", onclick: () => { location.hash = address([...chosen]); },
  });
  content.replaceChildren(
    make("h1", {}, "Runs"),
    make("p", { class: "lead" }, `${found.total} in ${found.root}` + (found.truncated ? " (more are not listed)" : "")),
    make("div", { class: "bar" }, search, filter, compare),
    listHead(body), pages(found.total));
  tellChosen();
  view = { kind: "runs", body };
}

function updateRuns(changed) {
  const known = new Map([...view.body.children].map((row) => [row.dataset.run, row]));
  let unknown = changed.gone.some((id) => known.has(id));
  for (const run of changed.runs) {
    const before = known.get(run.id);
    if (!before) { unknown = true; continue; }
    const focused = before.contains(document.activeElement);
    const after = rowOf(run);
    after.classList.add("changed");
    before.replaceWith(after);
    if (focused) after.querySelector("input").focus();
  }
  if (unknown && document.activeElement.type !== "search") showRuns().catch(fail);
}

// --- one run, or several compared ---

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
    control(run))));
}

function clientTable(id, clients) {
  if (!clients || !clients.client) return null;
  const names = Object.keys(clients).filter((name) => clients[name].some((value) => value !== null));
  const shown = (name, value) => (value === null ? "–" : name.startsWith("accuracy") ? percent(value) : String(value));
  const place = make("div", { class: "plot", hidden: true, id: "client-plot" });
  const rows = clients.client.map((client, n) => make("tr", {}, ...names.map((name, column) =>
    column ? make("td", {}, shown(name, clients[name][n]))
      : make("th", { scope: "row" }, make("button", {
        class: "button", type: "button", "aria-label": "client " + client + " over rounds",
        onclick: () => oneClient(id, client, place).catch(fail),
      }, String(client))))));
  return make("section", {}, make("h2", {}, "Clients, last round"),
    make("p", { class: "note" }, "Press a client's number to see it over the rounds."), place,
    make("div", { class: "tall", tabindex: "0", role: "region", "aria-label": "clients" },
      make("table", {}, make("thead", {}, make("tr", {}, ...names.map((name) =>
        make("th", { scope: "col" }, name.replaceAll("_", " "))))), make("tbody", {}, ...rows))));
}

async function oneClient(id, client, place) {
  const rounds = await ask("/api/client", { run: id, client });
  const line = (name, text, colour) => ({
    type: "scatter", mode: "lines", name: text, x: rounds.round,
    y: rounds[name].map((value) => (value === null ? null : 100 * value)), line: { color: "$" + colour },
  });
  place.hidden = false;
  place.dataset.figure = figures.length;
  figures.push({
    data: [line("accuracy_before", `client ${client}, delivered`, 0),
      line("accuracy_after", "after its own training", 1)],
    layout: { xaxis: { title: { text: "round" } }, yaxis: { title: { text: "accuracy, %" } } },
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
  const at = figures.length;
  figures.push(null);
  let wanted = 0;
  const show = async () => {
    const logged = matrices[which.value];
    slider.max = logged.rounds.length - 1;
    const round = logged.rounds[Math.min(slider.value, slider.max)];
    said.textContent = `round ${round}`;
    const turn = ++wanted;
    const found = await ask("/api/matrix", { run: id, name: logged.name, round });
    if (turn !== wanted) return;
    figures[at] = {
      data: [{ type: "heatmap", z: found.values, colorscale: "$scale", colorbar: { thickness: 10, outlinewidth: 0 },
        hovertemplate: "row %{y}, column %{x}: %{z:.4g}<extra></extra>" }],
      layout: { xaxis: { title: { text: "client" } }, yaxis: { title: { text: "client" }, autorange: "reversed" } },
    };
    place.dataset.figure = at;
    draw(place);
  };
  slider.addEventListener("input", () => show().catch(fail));
  which.addEventListener("change", () => { slider.value = 1e9; show().catch(fail); });
  const section = make("section", { id: "matrix" }, make("h2", {}, "Client by client, over the rounds"),
    make("div", { class: "bar" }, which, slider, said), place);
  slider.max = matrices[0].rounds.length - 1;
  slider.value = slider.max;
  return { section, show };
}

async function showReport(ids) {
  const found = await ask("/api/report", ids.map((id) => ["run", id]));
  const body = make("div", { id: "views" });
  body.innerHTML = found.html;
  content.replaceChildren(make("h1", {}, found.title), heads(found.runs), body);
  showFigures(body, found.figures);
  if (ids.length === 1) {
    const clients = clientTable(ids[0], found.clients);
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

// --- recipes and federations ---

async function showRecipes() {
  const { recipes } = await ask("/api/recipes");
  const cards = recipes.map((recipe) => make("article", { class: "card" },
    make("h3", {}, recipe.name), make("p", {}, recipe.title),
    make("div", { class: "cells", role: "img", "aria-label": recipe.told },
      ...recipe.cells.map((state) => make("i", { class: state, title: state }))),
    make("p", {}, recipe.told), make("p", {}, recipe.verdicts)));
  content.replaceChildren(make("h1", {}, "Recipes"),
    make("p", { class: "lead" }, "Tables and figures of the papers: cells done, running, missing; verdicts on claims."),
    recipes.length ? make("div", { class: "board" }, ...cards) : make("p", {}, "There is no recipe to show."));
  view = { kind: "recipes" };
  if (recipes.some((recipe) => recipe.counting)) {
    const now = view;
    setTimeout(() => { if (view === now) showRecipes().catch(fail); }, 1500);
  }
}

async function showSites(id) {
  if (!id) {
    const found = await ask("/api/runs", {});
    const known = found.runs.filter((run) => run.federation);
    content.replaceChildren(make("h1", {}, "Federations"), known.length
      ? make("ul", {}, ...known.map((run) => make("li", {}, make("a", { href: "#/sites?run=" + encodeURIComponent(run.id) }, run.label))))
      : make("p", {}, "No run over real sites is here. `idiolect server` starts one."));
    view = { kind: "federations" };
    return;
  }
  const board = await ask("/api/federation", { run: id });
  const cards = board.sites.map((site) => make("article", { class: "card" },
    make("h3", {}, site.name || "site " + site.client), make("p", {}, stateOf(site)),
    make("p", {}, `last seen ${ago(site.seen)}`),
    make("p", {}, site.round === null ? "nothing delivered yet"
      : `delivered ${site.delivered} times, last in round ${site.round}, ${site.staleness} rounds late`),
    site.refused ? make("p", { class: "problem-text" }, `${site.refused} refused; ${site.last_note}`) : null));
  const lines = board.journal.map((line) => make("tr", {}, make("td", {}, ago(Number(line.time))),
    make("th", { scope: "row" }, line.what), make("td", {}, line.client || ""), make("td", { class: "name" }, line.reason || line.name || "")));
  content.replaceChildren(make("h1", {}, "Sites of " + id), make("p", {}, make("a", { href: address([id]) }, "its results")),
    make("div", { class: "board" }, ...cards), make("section", {}, make("h2", {}, "Journal"),
      make("div", { class: "tall", tabindex: "0", role: "region", "aria-label": "journal" },
        make("table", { class: "runs" }, make("tbody", {}, ...lines)))));
  view = { kind: "sites", id };
}

// --- where we are, and what changes ---

function route() {
  const [path, query] = (location.hash || "#/").slice(1).split("?");
  const values = new URLSearchParams(query || "");
  document.title = "Idiolect";
  document.querySelectorAll("nav a:not(.brand)").forEach((a) => {
    const here = a.getAttribute("href").slice(1) === path;
    if (here) a.setAttribute("aria-current", "page"); else a.removeAttribute("aria-current");
  });
  view = null;
  const shown = path === "/report" ? showReport(values.getAll("run"))
    : path === "/recipes" ? showRecipes()
      : path === "/sites" ? showSites(values.get("run")) : showRuns();
  shown.then(() => { content.focus({ preventScroll: true }); window.scrollTo(0, 0); }).catch(fail);
}

function listen() {
  const stream = new EventSource("/api/stream");
  stream.onopen = () => { link.textContent = "live"; };
  stream.onerror = () => { link.textContent = "not connected; trying again"; };
  stream.onmessage = (message) => {
    const changed = JSON.parse(message.data);
    if (!view) return;
    if (view.kind === "runs") updateRuns(changed);
    if (view.kind === "report") updateReport(changed).catch(fail);
    if (view.kind === "recipes") showRecipes().catch(fail);
    if (view.kind === "sites") showSites(view.id).catch(fail);
  };
}

window.addEventListener("hashchange", route);
window.addEventListener("DOMContentLoaded", () => { route(); listen(); });
