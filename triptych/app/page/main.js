// The page, top to bottom: what is in the address is read, asked, shown; whatever changes goes back into the address.
import * as box from "./box.js";
import * as chips from "./chips.js";
import { byId, icon, keepFocus } from "./elements.js";
import * as keys from "./keys.js";
import * as map from "./map.js";
import { conditions, isEmpty, read, state, write } from "./query.js";
import { overview as ask, search, usable } from "./requests.js";
import * as results from "./results.js";
import { stop } from "./sound.js";
import * as why from "./why.js";

let overview = null;
let asking = null;
let shown = ""; // the address whose hits are on the page

const actions = {
  like: (id, weight = 1) => {
    state.parts = [...state.parts.filter((part) => part.id !== id), { kind: "item", id, weight }];
    state.tab = "search";
    changed();
    scrollTo({ top: 0 });
  },
  why: (id) => { state.why = id; changed(); },
  ask: (words) => { byId("text").value = words; box.boxed(words); changed(); },
  unfilter: () => { state.filters = []; state.modalities = []; changed(); },
  again: () => { shown = ""; render(); },
  layout: () => { state.view = state.view === "grid" ? "list" : "grid"; changed(); },
  theme: () => paint(document.documentElement.dataset.theme === "dark" ? "light" : "dark", true),
  record: () => box.toggleRecording(changed, complain),
  changed: () => changed(),
};

function changed({ typing = false } = {}) {
  const address = write(state);
  if (address !== location.search) history[typing ? "replaceState" : "pushState"](null, "", address);
  render();
}

function render() {
  box.fill();
  chips.partChips(changed);
  chips.filterChips(changed);
  chips.kindChips(overview, changed);
  for (const name of ["grid", "list"]) byId(name).setAttribute("aria-pressed", String(state.view === name));
  byId("results").className = `results ${state.view}`;
  for (const name of ["search", "map"]) {
    byId(name).hidden = state.tab !== name;
    const tab = byId(`tab-${name}`);
    if (state.tab === name) tab.setAttribute("aria-current", "page");
    else tab.removeAttribute("aria-current");
    tab.href = write({ ...state, tab: name, why: null });
  }
  document.querySelector(".views").hidden = state.tab === "map";
  byId("home").href = location.pathname;
  document.title = isEmpty() ? "triptych" : `${state.parts[0].text ?? state.parts[0].name ?? "like an item"} · triptych`;
  if (state.tab === "map") map.open(overview, actions);
  else find();
  const dialog = byId("why");
  if (state.why && usable(state.parts).length) why.open(state.why, () => changed());
  else if (dialog.open) dialog.close();
}

async function find() {
  const parts = usable(state.parts);
  const wanted = write({ ...state, view: "grid", why: null }) + parts.length;
  if (wanted === shown) return;
  asking?.abort();
  stop();
  if (!parts.length) {
    shown = wanted;
    withoutHits(results.empty(overview, actions));
    return;
  }
  asking = new AbortController();
  const { signal } = asking;
  byId("results").classList.add("waiting");
  byId("status").textContent = "searching …";
  try {
    const answer = await search({ modalities: state.modalities, k: state.k, filter: conditions(state.filters) }, parts, signal);
    if (signal.aborted) return;
    shown = wanted;
    showHits(answer);
    const good = answer.hits.filter((hit) => hit.relevance >= answer.relevance_threshold).length;
    byId("status").textContent = `${answer.hits.length} hits, ${good} probably relevant · ${Math.round(1000 * answer.seconds)} ms${answer.notes.map((note) => ` · ${note}`).join("")}`;
  } catch (error) {
    if (error.name === "AbortError") return;
    complain(error.message);
  } finally {
    if (!signal.aborted) byId("results").classList.remove("waiting");
  }
}

function showHits(answer) {
  const before = document.activeElement?.closest("#results .hit")?.dataset.id;
  keepFocus(byId("search"), () => {
    results.show(answer, actions);
    byId("state").replaceChildren(...(answer.hits.length ? [] : [results.nothing(actions)]));
    byId("further").hidden = answer.hits.length < state.k || state.k >= overview.limits.max_hits;
  }, (places) => places.find((place) => before && place.dataset.id === before) ?? places.find((place) => place.matches(".hit, #state button")));
}

function withoutHits(message) {
  keepFocus(byId("search"), () => {
    byId("results").replaceChildren();
    byId("results").classList.remove("waiting");
    byId("further").hidden = true;
    byId("status").textContent = "";
    byId("state").replaceChildren(message);
  }, (places) => places.find((place) => place.matches("#state button")) ?? byId("text"));
}

const complain = (message) => withoutHits(results.trouble(message, actions));

function paint(theme, chosen = false) {
  document.documentElement.dataset.theme = theme;
  byId("theme").replaceChildren(icon(theme === "dark" ? "sun" : "moon"));
  if (chosen) localStorage.setItem("theme", theme);
  document.querySelectorAll(".sound").forEach((strip) => strip.redraw?.());
  map.draw();
}

async function start() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const wished = () => localStorage.getItem("theme") ?? (dark.matches ? "dark" : "light");
  paint(wished());
  dark.addEventListener("change", () => paint(wished()));
  byId("theme").addEventListener("click", actions.theme);
  byId("keys").addEventListener("click", keys.help);
  byId("grid").append(icon("grid"));
  byId("list").append(icon("list"));
  for (const name of ["grid", "list"]) byId(name).addEventListener("click", () => { state.view = name; changed(); });
  byId("further").addEventListener("click", () => { state.k = Math.min(overview.limits.max_hits, 2 * state.k); changed(); });
  for (const name of ["search", "map"]) {
    byId(`tab-${name}`).addEventListener("click", (event) => { event.preventDefault(); state.tab = name; changed(); });
  }
  addEventListener("popstate", () => { Object.assign(state, read(location.search)); byId("text").blur(); render(); });
  box.listen(changed, complain);
  keys.listen(actions);
  try {
    overview = await ask();
  } catch (error) {
    byId("state").replaceChildren(results.trouble(error.message, { again: () => location.reload() }));
    return;
  }
  byId("about").textContent = `${overview.name} · ${overview.items.toLocaleString("en")} items`;
  byId("tab-report").hidden = !overview.report;
  byId("tab-review").hidden = !overview.review;
  chips.filterMenu(overview, changed);
  Object.assign(state, read(location.search));
  render();
  if (isEmpty()) byId("text").focus();
}

start();
