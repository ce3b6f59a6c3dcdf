"use strict";
// The list of runs: found, sorted, tagged, chosen for a comparison.
const chosen = new Set();
const list = { query: "", state: "", sort: "changed", down: false, offset: 0 };

const COLUMNS = [
  ["name", "run"], ["state", "state"], ["method", "method"], ["data", "data"], [null, "seed"],
  [null, "round"], ["accuracy", "score"], ["changed", "changed"],
];

function rowOf(run) {
  const box = make("input", {
    type: "checkbox", "aria-label": "choose " + run.label, checked: chosen.has(run.id),
    onchange: (event) => { chosen[event.target.checked ? "add" : "delete"](run.id); tellChosen(); },
  });
  return make("tr", { "data-run": run.id },
    make("td", {}, box),
    make("td", { class: "name" }, make("a", { href: address([run.id]) }, run.label), tagsOf(run)),
    make("td", {}, stateOf(run)),
    make("td", {}, run.method),
    make("td", {}, run.data + (run.split ? ", " + run.split : "")),
    make("td", { class: "number" }, run.seed === null ? "" : String(run.seed)),
    make("td", {}, progressOf(run)),
    make("td", { class: "number" }, scoreOf(run)),
    make("td", {}, ago(run.changed)),
  );
}

function tagsOf(run) {
  // Pressing a tag lists the runs that have it.
  return run.tags.length ? make("span", { class: "tags" }, ...run.tags.map((tag) => make("button", {
    type: "button", class: "tag", "aria-label": "runs tagged " + tag,
    onclick: () => { Object.assign(list, { query: "tag:" + tag, offset: 0 }); showRuns().catch(fail); },
  }, tag))) : null;
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

async function showRuns() {
  const values = { ...list, down: list.down ? "1" : "0" };
  const found = await ask("/api/runs", values);
  const body = make("tbody", {}, ...found.runs.map(rowOf));
  let slow = null;
  const search = make("input", {
    type: "search", placeholder: "method, data, name, tag:mine …", "aria-label": "search runs", value: list.query,
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
    listHead(body), pages(list.offset, found.total, (offset) => { list.offset = offset; showRuns().catch(fail); }));
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
