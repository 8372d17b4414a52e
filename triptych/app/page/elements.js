// Elements and icons, made by hand: everything that comes from files or people goes in as text, never as markup.
export function make(tag, settings = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(settings)) {
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

// Change what is inside an element. An element that is removed takes the keyboard focus with it, and keys lead nowhere
// then: so if the focused element goes, the one that `choose` picks gets the focus, given where among all it was.
export function keepFocus(element, change, choose) {
  const focused = element.contains(document.activeElement) ? document.activeElement : null;
  const at = focused ? [...element.querySelectorAll(FOCUSABLE)].indexOf(focused) : -1;
  change();
  if (focused && (!focused.isConnected || focused.hidden)) choose([...element.querySelectorAll(FOCUSABLE)], at)?.focus();
}

// Replace the content of an element; the focus stays in its place, or goes to `otherwise` where nothing is left.
export function refill(element, children, otherwise = null) {
  keepFocus(element, () => element.replaceChildren(...children), (places, at) => places[Math.min(at, places.length - 1)] ?? otherwise);
}

// Strokes on a 24 × 24 field.
const STROKES = {
  play: "M8 5v14l11-7z", pause: "M8 5v14M16 5v14", plus: "M12 5v14M5 12h14", minus: "M5 12h14", close: "M6 6l12 12M18 6L6 18",
  file: "M20 11l-8.5 8.5a5 5 0 0 1-7-7L13 4a3.3 3.3 0 0 1 4.7 4.7l-8.5 8.5a1.7 1.7 0 0 1-2.4-2.4L14.500 7",
  microphone: "M12 3a3 3 0 0 1 3 3v5a3 3 0 0 1-6 0V6a3 3 0 0 1 3-3zM5 11a7 7 0 0 0 14 0M12 18v3",
  stop: "M7 7h10v10H7z", sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2v2M12 20v2M4.900 4.900l1.400 1.400M17.700 17.700l1.400 1.400M2 12h2M20 12h2M4.900 19.100l1.400-1.400M17.700 6.300l1.400-1.400",
  moon: "M20 14.500A8 8 0 0 1 9.500 4 8 8 0 1 0 20 14.500z", grid: "M4 4h7v7H4zM13 4h7v7h-7zM4 13h7v7H4zM13 13h7v7h-7z", list: "M4 6h16M4 12h16M4 18h16",
  image: "M4 5h16v14H4zM4 16l5-5 4 4 3-3 4 4M15.500 9.500h.010", audio: "M4 10v4M8 6v12M12 3v18M16 7v10M20 10v4", text: "M5 6h14M5 12h14M5 18h9",
  search: "M11 4a7 7 0 1 0 0 14 7 7 0 0 0 0-14zM16 16l5 5", trouble: "M12 3l10 18H2zM12 10v5M12 18h.010",
};

export function icon(name, size = 20) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  const filled = name === "play" || name === "stop";
  for (const [key, value] of Object.entries({
    viewBox: "0 0 24 24", width: size, height: size, fill: filled ? "currentColor" : "none", stroke: "currentColor",
    "stroke-width": 2, "stroke-linecap": "round", "stroke-linejoin": "round", "aria-hidden": "true",
  })) svg.setAttribute(key, value);
  const path = document.createElementNS(space, "path");
  path.setAttribute("d", STROKES[name]);
  svg.append(path);
  return svg;
}

export const NAMES = { image: "Pictures", audio: "Sounds", text: "Texts" };
export const ONE = { image: "picture", audio: "sound", text: "text" };

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

export function clock(seconds) {
  const whole = Math.max(0, seconds);
  const minutes = Math.floor(whole / 60);
  const rest = whole - 60 * minutes;
  const shown = whole < 60 ? rest.toFixed(1) : String(Math.floor(rest)).padStart(2, "0");
  return `${minutes}:${whole < 60 && rest < 9.95 ? "0" : ""}${shown}`;
}
