// The main module: parse the URL, search, render. Every change of the state is written back to the URL.
import { listenToBox, renderBox, setBoxText, toggleRecording } from "./search_box.js";
import * as chips from "./chips.js";
import { byId, icon, keepFocus } from "./elements.js";
import { listenToKeys, showHelp } from "./keyboard.js";
import { drawMap, openMap } from "./map.js";
import { formatUrl, isEmpty, makeFilter, parseUrl, state } from "./query.js";
import { fetchCollection, search, usableParts } from "./requests.js";
import * as results from "./results.js";
import { stop } from "./audio.js";
import { openExplanation } from "./explanation.js";

let collection = null;
let pendingSearch = null;
let renderedUrl = ""; // the URL of the search whose hits are shown

const actions = {
  like: (id, weight = 1) => {
    state.parts = [...state.parts.filter((part) => part.id !== id), { type: "item", id, weight }];
    state.tab = "search";
    onChange();
    scrollTo({ top: 0 });
  },
  explain: (id) => { state.explain = id; onChange(); },
  searchText: (text) => { byId("text").value = text; setBoxText(text); onChange(); },
  removeFilters: () => { state.filters = []; state.modalities = []; onChange(); },
  retry: () => { renderedUrl = ""; render(); },
  layout: () => { state.view = state.view === "grid" ? "list" : "grid"; onChange(); },
  theme: () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark", true),
  record: () => toggleRecording(onChange, showError),
  onChange: () => onChange(),
};

function onChange({ isTyping = false } = {}) {
  const url = formatUrl(state);
  if (url !== location.search) history[isTyping ? "replaceState" : "pushState"](null, "", url);
  render();
}

function render() {
  renderBox();
  chips.renderPartChips(onChange);
  chips.renderFilterChips(onChange);
  chips.renderModalityChips(collection, onChange);
  for (const name of ["grid", "list"]) byId(name).setAttribute("aria-pressed", String(state.view === name));
  byId("results").className = `results ${state.view}`;
  for (const name of ["search", "map"]) {
    byId(name).hidden = state.tab !== name;
    const tab = byId(`tab-${name}`);
    if (state.tab === name) tab.setAttribute("aria-current", "page");
    else tab.removeAttribute("aria-current");
    tab.href = formatUrl({ ...state, tab: name, explain: null });
  }
  document.querySelector(".views").hidden = state.tab === "map";
  byId("home").href = location.pathname;
  document.title = isEmpty() ? "triptych" : `${state.parts[0].text ?? state.parts[0].name ?? "similar items"} · triptych`;
  if (state.tab === "map") openMap(collection, actions);
  else runSearch();
  const dialog = byId("explanation");
  if (state.explain && usableParts(state.parts).length) openExplanation(state.explain, () => onChange());
  else if (dialog.open) dialog.close();
}

async function runSearch() {
  const parts = usableParts(state.parts);
  const requestedUrl = formatUrl({ ...state, view: "grid", explain: null }) + parts.length;
  if (requestedUrl === renderedUrl) return;
  pendingSearch?.abort();
  stop();
  if (!parts.length) {
    renderedUrl = requestedUrl;
    showMessage(results.makeEmptyState(collection, actions));
    return;
  }
  pendingSearch = new AbortController();
  const { signal } = pendingSearch;
  byId("results").classList.add("waiting");
  byId("status").textContent = "searching …";
  try {
    const answer = await search({ modalities: state.modalities, k: state.k, filter: makeFilter(state.filters) }, parts, signal);
    if (signal.aborted) return;
    renderedUrl = requestedUrl;
    showHits(answer);
    const numRelevant = answer.hits.filter((hit) => hit.relevance >= answer.relevance_threshold).length;
    byId("status").textContent = `${answer.hits.length} hits, ${numRelevant} probably relevant · ${Math.round(1000 * answer.seconds)} ms${answer.notes.map((note) => ` · ${note}`).join("")}`;
  } catch (error) {
    if (error.name === "AbortError") return;
    showError(error.message);
  } finally {
    if (!signal.aborted) byId("results").classList.remove("waiting");
  }
}

function showHits(answer) {
  const focusedId = document.activeElement?.closest("#results .hit")?.dataset.id;
  keepFocus(byId("search"), () => {
    results.renderHits(answer, actions);
    byId("message").replaceChildren(...(answer.hits.length ? [] : [results.makeNoHitsState(actions)]));
    byId("load-more").hidden = answer.hits.length < state.k || state.k >= collection.limits.max_hits;
  }, (candidates) => candidates.find((candidate) => focusedId && candidate.dataset.id === focusedId) ?? candidates.find((candidate) => candidate.matches(".hit, #message button")));
}

function showMessage(message) {
  keepFocus(byId("search"), () => {
    byId("results").replaceChildren();
    byId("results").classList.remove("waiting");
    byId("load-more").hidden = true;
    byId("status").textContent = "";
    byId("message").replaceChildren(message);
  }, (candidates) => candidates.find((candidate) => candidate.matches("#message button")) ?? byId("text"));
}

const showError = (message) => showMessage(results.makeErrorState(message, actions));

function setTheme(theme, isChosen = false) {
  document.documentElement.dataset.theme = theme;
  byId("theme").replaceChildren(icon(theme === "dark" ? "sun" : "moon"));
  if (isChosen) localStorage.setItem("theme", theme);
  document.querySelectorAll(".audio").forEach((element) => element.redraw?.());
  drawMap();
}

async function start() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const preferredTheme = () => localStorage.getItem("theme") ?? (dark.matches ? "dark" : "light");
  setTheme(preferredTheme());
  dark.addEventListener("change", () => setTheme(preferredTheme()));
  byId("theme").addEventListener("click", actions.theme);
  byId("keys").addEventListener("click", showHelp);
  byId("grid").append(icon("grid"));
  byId("list").append(icon("list"));
  for (const name of ["grid", "list"]) byId(name).addEventListener("click", () => { state.view = name; onChange(); });
  byId("load-more").addEventListener("click", () => { state.k = Math.min(collection.limits.max_hits, 2 * state.k); onChange(); });
  for (const name of ["search", "map"]) {
    byId(`tab-${name}`).addEventListener("click", (event) => { event.preventDefault(); state.tab = name; onChange(); });
  }
  addEventListener("popstate", () => { Object.assign(state, parseUrl(location.search)); byId("text").blur(); render(); });
  listenToBox(onChange, showError);
  listenToKeys(actions);
  try {
    collection = await fetchCollection();
  } catch (error) {
    byId("message").replaceChildren(results.makeErrorState(error.message, { retry: () => location.reload() }));
    return;
  }
  byId("collection-info").textContent = `${collection.name} · ${collection.items.toLocaleString("en")} items`;
  byId("tab-report").hidden = !collection.report;
  byId("tab-review").hidden = !collection.review;
  chips.renderFilterMenu(collection, onChange);
  Object.assign(state, parseUrl(location.search));
  render();
  if (isEmpty()) byId("text").focus();
}

start();
