"use strict";
// The live page. Everything from the server is put in as text, never as markup; the one exception is
// the report's HTML, which the server made and escaped.
const content = document.getElementById("content");
const link = document.getElementById("link");
const key = document.querySelector("meta[name=idiolect-key]").content;
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
const plainNumber = (value) => (value === null ? "–" : String(Number(value.toPrecision(4))));

function scoreOf(run) {
  // With its metric, unless that is accuracy: runs of different tasks stand in one list.
  if (run.accuracy === null) return "–";
  const told = run.share ? percent(run.accuracy) + " %" : plainNumber(run.accuracy);
  return run.metric === "accuracy" ? told : `${told} ${run.metric}`;
}

const megabytes = (bytes) => (bytes / 1e6).toFixed(bytes < 1e5 ? 3 : 1) + " MB";
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

const PAGE = 100; // rows of a table that are shown at once

function pages(start, total, show) {
  const last = Math.min(start + PAGE, total);
  const step = (text, to, off) => make("button", { class: "button", type: "button", disabled: off, onclick: () => show(to) }, text);
  return make("div", { class: "pages" }, step("Earlier", start - PAGE, start === 0),
    make("span", {}, total ? `${start + 1} to ${last} of ${total}` : "none"), step("Later", start + PAGE, last >= total));
}

function fail(error) {
  content.replaceChildren(make("p", { class: "notice", role: "alert" }, String(error.message || error)));
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
    if (view.kind === "sites") fillSites(view).catch((error) => { link.textContent = error.message; });
  };
}

window.addEventListener("hashchange", route);
window.addEventListener("DOMContentLoaded", () => { route(); listen(); });
