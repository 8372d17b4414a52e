// Keyboard shortcuts: every action has a key, and the arrow keys move between hits.
import { closeMenu } from "./chips.js";
import { byId, icon, make } from "./elements.js";
import { togglePlayback } from "./results.js";

const KEYS = [
  ["/", "focus the search box"], ["Enter", "search; on a hit: explain the hit"], ["Shift + Enter", "in the search box: add the text as a part of the query"],
  ["↓ ↑ ← →", "move between hits"], ["Space", "play or stop the hit"], ["s", "switch between waveform and spectrogram"], ["m / l", "more / less like this hit"],
  ["r", "start or stop recording"], ["g", "switch between grid and list"], ["t", "switch between light and dark theme"], ["Esc", "close the menu or dialog, or return to the search box"], ["?", "show the keyboard shortcuts"],
];

export function showHelp() {
  const dialog = byId("help");
  const close = make("button", { type: "button", class: "plain", "aria-label": "Close", onclick: () => dialog.close() }, icon("close"));
  dialog.replaceChildren(
    make("div", { class: "panel-top" }, make("h2", { id: "help-title" }, "Keyboard shortcuts"), close),
    make("div", { class: "panel-body" }, make("dl", {}, ...KEYS.flatMap(([key, description]) => [make("dt", {}, make("kbd", {}, key)), make("dd", {}, description)]))),
  );
  dialog.showModal();
}

export function listenToKeys(actions) {
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (event.key === "Escape" && closeMenu()) { event.preventDefault(); return; }
    const isTyping = event.target.matches("input:not([type=range]), select, textarea");
    if (isTyping) {
      if (event.key === "ArrowDown" && event.target.id === "text") { event.preventDefault(); focus(hits()[0]); }
      if (event.key === "Escape") event.target.blur();
      return;
    }
    const hit = event.target.closest?.(".hit");
    const isHandled = (hit && handleHitKey(event, hit, actions)) || handleGlobalKey(event, actions);
    if (isHandled) event.preventDefault();
  });
  byId("results").addEventListener("focusin", (event) => {
    const hit = event.target.closest(".hit");
    if (hit) hits().forEach((other) => { other.tabIndex = other === hit ? 0 : -1; });
  });
}

const hits = () => [...document.querySelectorAll("#results .hit")];

function focus(hit) {
  if (!hit) return;
  hit.focus();
  hit.scrollIntoView({ block: "nearest" });
}

function handleHitKey(event, hit, actions) {
  const { key } = event;
  if (key === " " && event.target === hit) { togglePlayback(hit); return true; }
  if (key === "Enter" && event.target === hit) { actions.explain(hit.dataset.id); return true; }
  if (key === "s") { hit.querySelector(".audio")?.toggleView(); return true; }
  if (key === "m" || key === "l") { actions.like(hit.dataset.id, key === "m" ? 1 : -0.5); return true; }
  if (key === "Escape") { byId("text").focus(); return true; }
  if (!key.startsWith("Arrow")) return false;
  focus(findNeighbour(hit, key));
  return true;
}

function findNeighbour(hit, key) {
  const all = hits();
  const index = all.indexOf(hit);
  if (key === "ArrowRight") return all[index + 1];
  if (key === "ArrowLeft") return all[index - 1];
  // Up and down: the nearest hit in the previous or next row on the screen.
  const rectangle = hit.getBoundingClientRect();
  const isDown = key === "ArrowDown";
  const candidates = all.map((other) => [other, other.getBoundingClientRect()]).filter(([, box]) => (isDown ? box.top >= rectangle.bottom - 4 : box.bottom <= rectangle.top + 4));
  const distance = ([, box]) => Math.abs(box.top - rectangle.top) * 4 + Math.abs(box.left - rectangle.left);
  return candidates.sort((a, b) => distance(a) - distance(b))[0]?.[0];
}

function handleGlobalKey(event, actions) {
  const handlers = { "/": () => byId("text").select(), "?": showHelp, g: actions.layout, t: actions.theme, r: actions.record, ArrowDown: () => focus(hits()[0]) };
  if (!handlers[event.key] || (event.key === "ArrowDown" && event.target !== document.body)) return false;
  if (event.key === "/") byId("text").focus();
  handlers[event.key]();
  return true;
}
