// Helpers that create elements and icons. All values are inserted as text, never as markup.
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "data") Object.assign(element.dataset, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const byId = (id) => document.getElementById(id);

const FOCUSABLE = "button, input, select, a[href], [tabindex]";

// Change the content of an element. If this removes the focused element, focus the element that `choose` returns, so that
// keyboard navigation continues there. `choose` gets all focusable elements and the old index of the focused element.
export function keepFocus(element, change, choose) {
  const focused = element.contains(document.activeElement) ? document.activeElement : null;
  const index = focused ? [...element.querySelectorAll(FOCUSABLE)].indexOf(focused) : -1;
  change();
  if (focused && (!focused.isConnected || focused.hidden)) choose([...element.querySelectorAll(FOCUSABLE)], index)?.focus();
}

// Replace the content of an element. The focus stays at the same index, or moves to `fallback` if no element is left.
export function replaceContent(element, children, fallback = null) {
  keepFocus(element, () => element.replaceChildren(...children), (candidates, index) => candidates[Math.min(index, candidates.length - 1)] ?? fallback);
}

// SVG paths of icons, 24 × 24 units.
const ICON_PATHS = {
  play: "M8 5v14l11-7z", pause: "M8 5v14M16 5v14", plus: "M12 5v14M5 12h14", minus: "M5 12h14", close: "M6 6l12 12M18 6L6 18",
  file: "M20 11l-8.5 8.5a5 5 0 0 1-7-7L13 4a3.3 3.3 0 0 1 4.7 4.7l-8.5 8.5a1.7 1.7 0 0 1-2.4-2.4L14.500 7",
  microphone: "M12 3a3 3 0 0 1 3 3v5a3 3 0 0 1-6 0V6a3 3 0 0 1 3-3zM5 11a7 7 0 0 0 14 0M12 18v3",
  stop: "M7 7h10v10H7z", sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2v2M12 20v2M4.900 4.900l1.400 1.400M17.700 17.700l1.400 1.400M2 12h2M20 12h2M4.900 19.100l1.400-1.400M17.700 6.300l1.400-1.400",
  moon: "M20 14.500A8 8 0 0 1 9.500 4 8 8 0 1 0 20 14.500z", grid: "M4 4h7v7H4zM13 4h7v7h-7zM4 13h7v7H4zM13 13h7v7h-7z", list: "M4 6h16M4 12h16M4 18h16",
  image: "M4 5h16v14H4zM4 16l5-5 4 4 3-3 4 4M15.500 9.500h.010", audio: "M4 10v4M8 6v12M12 3v18M16 7v10M20 10v4", text: "M5 6h14M5 12h14M5 18h9",
  search: "M11 4a7 7 0 1 0 0 14 7 7 0 0 0 0-14zM16 16l5 5", warning: "M12 3l10 18H2zM12 10v5M12 18h.010",
};

export function icon(name, size = 20) {
  const namespace = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(namespace, "svg");
  const filled = name === "play" || name === "stop";
  for (const [key, value] of Object.entries({
    viewBox: "0 0 24 24", width: size, height: size, fill: filled ? "currentColor" : "none", stroke: "currentColor",
    "stroke-width": 2, "stroke-linecap": "round", "stroke-linejoin": "round", "aria-hidden": "true",
  })) svg.setAttribute(key, value);
  const path = document.createElementNS(namespace, "path");
  path.setAttribute("d", ICON_PATHS[name]);
  svg.append(path);
  return svg;
}

export const MODALITY_LABELS = { image: "Images", audio: "Audio", text: "Texts" };
export const MODALITY_NAMES = { image: "image", audio: "audio", text: "text" };

export function themeColour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

export function formatTime(seconds) {
  const total = Math.max(0, seconds);
  const minutes = Math.floor(total / 60);
  const rest = total - 60 * minutes;
  const text = total < 60 ? rest.toFixed(1) : String(Math.floor(rest)).padStart(2, "0");
  return `${minutes}:${total < 60 && rest < 9.95 ? "0" : ""}${text}`;
}
