"use strict";
// The board of recipes, and the board of the sites of a real federation.
const MANY_CELLS = 240; // of a recipe, beyond which its squares are small
const LOOK_AT_SITES = 2000; // milliseconds: sites come and go between two rounds

async function showRecipes() {
  const { recipes } = await ask("/api/recipes");
  const cards = recipes.map((recipe) => make("article", { class: "card" },
    make("h3", {}, recipe.name), make("p", {}, recipe.title),
    make("div", { class: recipe.cells.length > MANY_CELLS ? "cells many" : "cells", role: "img", "aria-label": recipe.told },
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
    const { runs: known } = await ask("/api/runs", { federations: "1" });
    content.replaceChildren(make("h1", {}, "Federations"), known.length
      ? make("ul", {}, ...known.map((run) => make("li", {}, make("a", { href: "#/sites?run=" + encodeURIComponent(run.id) }, run.label))))
      : make("p", {}, "No run over real sites is here. `idiolect server` starts one."));
    view = { kind: "federations" };
    return;
  }
  const cards = make("div", { class: "board" });
  const lines = make("tbody", {});
  content.replaceChildren(make("h1", {}, "Sites of " + id), make("p", {}, make("a", { href: address([id]) }, "its results")),
    cards, make("section", {}, make("h2", {}, "Journal"),
      make("div", { class: "tall", tabindex: "0", role: "region", "aria-label": "journal" },
        make("table", { class: "runs" }, lines))));
  const now = { kind: "sites", id, cards, lines };
  view = now;
  await fillSites(now);
  const again = async () => {
    if (view !== now) return;
    try { await fillSites(now); } catch (error) { link.textContent = error.message; } // the board stays
    setTimeout(again, LOOK_AT_SITES);
  };
  setTimeout(again, LOOK_AT_SITES);
}

async function fillSites(now) {
  const board = await ask("/api/federation", { run: now.id });
  now.cards.replaceChildren(...board.sites.map(siteCard));
  const newest = JSON.stringify(board.journal[0] || "") + board.journal.length;
  if (newest === now.newest) return;
  now.newest = newest;
  now.lines.replaceChildren(...board.journal.map((line) => make("tr", {}, make("td", {}, ago(Number(line.time))),
    make("th", { scope: "row" }, line.what), make("td", {}, Number(line.client) >= 0 ? line.client : ""), make("td", { class: "name" }, line.reason || line.name || ""))));
}

function siteState(site) {
  const told = { here: "here", gone: "gone", lost: "does not answer" };
  return make("span", { class: "state " + site.state }, told[site.state] || "unknown");
}

function siteCard(site) {
  const late = site.staleness ? `, ${site.staleness} rounds late` : "";
  return make("article", { class: "card", "data-site": site.client },
    make("h3", {}, site.name || "site " + site.client), make("p", {}, siteState(site)),
    make("p", {}, `last seen ${ago(site.seen)}`),
    make("p", {}, site.round === null ? "nothing delivered yet"
      : `delivered ${site.delivered} times, last in round ${site.round}${late}`),
    make("p", {}, `${megabytes(site.bytes_up)} sent, ${megabytes(site.bytes_down)} received`),
    site.refused ? make("p", { class: "problem-text" }, `${site.refused} refused`) : null,
    site.last_note ? make("p", { class: "problem-text" }, site.last_note) : null);
}
