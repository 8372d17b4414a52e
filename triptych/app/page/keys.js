// Keyboard first: every action has a key, and the arrow keys walk over the hits.
import { closeMenu } from "./chips.js";
import { byId, icon, make } from "./elements.js";
import { play } from "./results.js";

const KEYS = [
  ["/", "to the box"], ["Enter", "search; on a hit: why this hit?"], ["Shift + Enter", "in the box: keep the words as a part and add another"],
  ["↓ ↑ ← →", "from hit to hit"], ["Space", "play or stop"], ["s", "outline or spectrogram"], ["m / l", "more, less like this hit"],
  ["r", "record, and stop recording"], ["g", "grid or list"], ["t", "light or dark"], ["Esc", "close, or back to the box"], ["?", "these keys"],
];

export function help() {
  const dialog = byId("help");
  const close = make("button", { type: "button", class: "plain", "aria-label": "Close", onclick: () => dialog.close() }, icon("close"));
  dialog.replaceChildren(
    make("div", { class: "panel-top" }, make("h2", { id: "help-title" }, "Keys"), close),
    make("div", { class: "panel-body" }, make("dl", {}, ...KEYS.flatMap(([key, what]) => [make("dt", {}, make("kbd", {}, key)), make("dd", {}, what)]))),
  );
  dialog.showModal();
}

export function listen(actions) {
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (event.key === "Escape" && closeMenu()) { event.preventDefault(); return; }
    const writing = event.target.matches("input:not([type=range]), select, textarea");
    if (writing) {
      if (event.key === "ArrowDown" && event.target.id === "text") { event.preventDefault(); focus(hits()[0]); }
      if (event.key === "Escape") event.target.blur();
      return;
    }
    const hit = event.target.closest?.(".hit");
    const done = (hit && onHit(event, hit, actions)) || anywhere(event, actions);
    if (done) event.preventDefault();
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

function onHit(event, hit, actions) {
  const { key } = event;
  if (key === " " && event.target === hit) { play(hit); return true; }
  if (key === "Enter" && event.target === hit) { actions.why(hit.dataset.id); return true; }
  if (key === "s") { hit.querySelector(".sound")?.swap(); return true; }
  if (key === "m" || key === "l") { actions.like(hit.dataset.id, key === "m" ? 1 : -0.5); return true; }
  if (key === "Escape") { byId("text").focus(); return true; }
  if (!key.startsWith("Arrow")) return false;
  focus(neighbour(hit, key));
  return true;
}

function neighbour(hit, key) {
  const all = hits();
  const at = all.indexOf(hit);
  if (key === "ArrowRight") return all[at + 1];
  if (key === "ArrowLeft") return all[at - 1];
  // Up and down: the nearest hit of the next row, as it lies on the screen.
  const here = hit.getBoundingClientRect();
  const down = key === "ArrowDown";
  const beyond = all.map((other) => [other, other.getBoundingClientRect()]).filter(([, box]) => (down ? box.top >= here.bottom - 4 : box.bottom <= here.top + 4));
  const far = ([, box]) => Math.abs(box.top - here.top) * 4 + Math.abs(box.left - here.left);
  return beyond.sort((a, b) => far(a) - far(b))[0]?.[0];
}

function anywhere(event, actions) {
  const named = { "/": () => byId("text").select(), "?": help, g: actions.layout, t: actions.theme, r: actions.record, ArrowDown: () => focus(hits()[0]) };
  if (!named[event.key] || (event.key === "ArrowDown" && event.target !== document.body)) return false;
  if (event.key === "/") byId("text").focus();
  named[event.key]();
  return true;
}
