// The collection as a map: density, colour by kind or column, a lasso that lists, and where the query lands.
import { NAMES, byId, colour, icon, make } from "./elements.js";
import { isEmpty, state } from "./query.js";
import { address, land, map as ask, usable } from "./requests.js";

const room = byId("map");
// Distinct in hue and lightness; after these come shapes of grey.
const HUES = ["#0f8f7f", "#d9730d", "#7a62e0", "#c2417c", "#3d8bd4", "#8a8f1d", "#b5483a", "#5a7d4a", "#946b2d", "#6b7f99"];
let points = null;
let landed = null;
let view = { x: 0.5, y: 0.5, zoom: 1 };
let lasso = [];
let chosen = new Set();
let canvas, tip, list, legend, actions;

export async function open(overview, given) {
  actions = given;
  if (!room.firstChild) build(overview);
  legend.replaceChildren();
  list.replaceChildren(make("h2", {}, "Draw around points to list them"), make("p", { class: "note", role: "status" }, points ? "" : "Drawing the map; the first time takes a while …"));
  try {
    points = await ask(state.colour);
    list.replaceChildren(make("h2", {}, "Draw around points to list them"), make("p", { class: "note" }, `${points.ids.length.toLocaleString("en")} of ${points.total.toLocaleString("en")} items. Drag to draw a line around some, scroll to zoom; or move the cross with the arrow keys and press Enter.`));
    paintLegend();
    draw();
    await where();
    draw();
  } catch (error) {
    list.replaceChildren(make("p", { class: "note", role: "alert" }, error.message));
  }
}

async function where() {
  landed = null;
  const parts = usable(state.parts);
  if (!isEmpty() && parts.length) landed = await land(parts).catch(() => null);
}

function build(overview) {
  const choose = make("select", { id: "map-colour", onchange: (event) => { state.colour = event.target.value; actions.changed(); } },
    make("option", { value: "" }, "kind"), ...Object.keys(overview.columns).map((name) => make("option", { value: name, selected: state.colour === name }, name)));
  const reset = make("button", { type: "button", class: "soft", onclick: () => { view = { x: 0.5, y: 0.5, zoom: 1 }; draw(); } }, "Whole map");
  canvas = make("canvas", { tabindex: "0", role: "application", "aria-label": "Map of the collection: arrow keys move a cross, plus and minus zoom, Enter lists what is around it" });
  tip = make("div", { class: "map-tip", hidden: true });
  list = make("div", { class: "map-list", "aria-live": "polite" });
  legend = make("ul", { class: "map-legend", "aria-label": "Colours" });
  room.append(
    make("div", { class: "map-bar" }, make("label", { for: "map-colour" }, "colour by", choose), reset),
    make("div", { class: "map-room" }, make("div", {}, make("div", { class: "map-field" }, canvas, tip), legend), list),
  );
  listen();
  new ResizeObserver(draw).observe(canvas);
}

const toScreen = (x, y) => [((x - view.x) * view.zoom + 0.5) * canvas.clientWidth, ((y - view.y) * view.zoom + 0.5) * canvas.clientHeight];
const toMap = (x, y) => [(x / canvas.clientWidth - 0.5) / view.zoom + view.x, (y / canvas.clientHeight - 0.5) / view.zoom + view.y];

const isShown = (place) => !state.modalities.length || state.modalities.includes(points.modalities[place]);

function hue(place) {
  if (!points.values) return colour(points.modalities[place]);
  const value = points.values[place];
  const known = points.legend.indexOf(value);
  return known < 0 ? colour("soft") : HUES[known % HUES.length];
}

function paintLegend() {
  const entries = points.values ? points.legend.slice(0, HUES.length).map((name, place) => [name, HUES[place]]) : Object.entries(NAMES).filter(([kind]) => points.modalities.includes(kind)).map(([kind, name]) => [name, colour(kind)]);
  legend.replaceChildren(...entries.map(([name, shade]) => {
    const dot = make("i");
    dot.style.background = shade;
    return make("li", {}, dot, name);
  }));
}

export function draw() {
  if (!canvas || !points || room.hidden) return;
  const ratio = devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  density(pen, width, height);
  const size = Math.max(2.1, Math.min(6, 130 / Math.sqrt(points.ids.length))) * Math.sqrt(view.zoom);
  pen.globalAlpha = 0.85;
  points.ids.forEach((id, place) => {
    const [x, y] = toScreen(points.x[place], points.y[place]);
    if (!isShown(place) || x < -9 || y < -9 || x > width + 9 || y > height + 9) return;
    pen.fillStyle = hue(place);
    pen.beginPath();
    pen.arc(x, y, chosen.has(id) ? size + 2 : size, 0, 7);
    pen.fill();
    if (chosen.has(id)) { pen.strokeStyle = colour("ink"); pen.lineWidth = 1.5; pen.stroke(); }
  });
  pen.globalAlpha = 1;
  if (landed) star(pen, ...toScreen(landed.x, landed.y));
  if (lasso.length) {
    pen.beginPath();
    lasso.forEach(([x, y], place) => (place ? pen.lineTo(x, y) : pen.moveTo(x, y)));
    pen.strokeStyle = colour("accent");
    pen.lineWidth = 2;
    pen.setLineDash([6, 4]);
    pen.stroke();
    pen.setLineDash([]);
  }
  if (document.activeElement === canvas && cross) {
    const [x, y] = toScreen(...cross);
    pen.strokeStyle = colour("ink");
    pen.strokeRect(x - REACH, y - REACH, 2 * REACH, 2 * REACH);
    pen.beginPath(); pen.moveTo(x - 8, y); pen.lineTo(x + 8, y); pen.moveTo(x, y - 8); pen.lineTo(x, y + 8); pen.stroke();
  }
}

// How many points lie where: soft blots that add up.
function density(pen, width, height) {
  const reach = Math.round(Math.min(width, height) / 16);
  const blot = make("canvas", { width: 2 * reach, height: 2 * reach });
  const brush = blot.getContext("2d");
  const fade = brush.createRadialGradient(reach, reach, 0, reach, reach, reach);
  fade.addColorStop(0, colour("soft"));
  fade.addColorStop(1, "transparent");
  brush.fillStyle = fade;
  brush.fillRect(0, 0, 2 * reach, 2 * reach);
  pen.globalAlpha = Math.max(0.012, Math.min(0.12, 45 / points.ids.length));
  points.x.forEach((_, place) => {
    if (!isShown(place)) return;
    const [x, y] = toScreen(points.x[place], points.y[place]);
    pen.drawImage(blot, x - reach, y - reach);
  });
  pen.globalAlpha = 1;
}

function star(pen, x, y) {
  pen.beginPath();
  for (let i = 0; i < 10; i++) {
    const [angle, far] = [(i * Math.PI) / 5 - Math.PI / 2, i % 2 ? 6 : 15];
    pen.lineTo(x + far * Math.cos(angle), y + far * Math.sin(angle));
  }
  pen.closePath();
  pen.fillStyle = colour("accent");
  pen.strokeStyle = colour("card");
  pen.lineWidth = 2;
  pen.fill();
  pen.stroke();
  pen.font = "600 13px system-ui, sans-serif";
  pen.lineWidth = 4;
  pen.strokeText("your query", x + 18, y + 5);
  pen.fillStyle = colour("ink");
  pen.fillText("your query", x + 18, y + 5);
}

const REACH = 40;
let cross = null;

function listen() {
  canvas.addEventListener("pointerdown", (event) => { canvas.setPointerCapture(event.pointerId); lasso = [[event.offsetX, event.offsetY]]; });
  canvas.addEventListener("pointermove", (event) => {
    if (lasso.length) { lasso.push([event.offsetX, event.offsetY]); tip.hidden = true; return draw(); }
    return hover(event.offsetX, event.offsetY);
  });
  canvas.addEventListener("pointerup", (event) => {
    const line = lasso;
    lasso = [];
    if (line.length > 5) choose((x, y) => inside(line, x, y));
    else { const near = nearest(event.offsetX, event.offsetY); choose((_, __, place) => place === near); }
    draw();
  });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  canvas.addEventListener("focus", () => { cross ??= [view.x, view.y]; draw(); });
  canvas.addEventListener("blur", draw);
  canvas.addEventListener("wheel", (event) => { event.preventDefault(); zoom(event.deltaY < 0 ? 1.2 : 1 / 1.2, event.offsetX, event.offsetY); }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    const step = 0.04 / view.zoom;
    const moves = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, -step], ArrowDown: [0, step] };
    if (moves[event.key]) cross = [cross[0] + moves[event.key][0], cross[1] + moves[event.key][1]];
    else if (event.key === "+" || event.key === "=") zoom(1.3, ...toScreen(...cross));
    else if (event.key === "-") zoom(1 / 1.3, ...toScreen(...cross));
    else if (event.key === "Enter") { const [cx, cy] = toScreen(...cross); choose((x, y) => Math.abs(x - cx) < REACH && Math.abs(y - cy) < REACH); }
    else return;
    event.preventDefault();
    event.stopPropagation();
    draw();
  });
}

function zoom(factor, x, y) {
  const [mx, my] = toMap(x, y);
  const next = Math.max(1, Math.min(40, view.zoom * factor));
  view = { zoom: next, x: mx - (x / canvas.clientWidth - 0.5) / next, y: my - (y / canvas.clientHeight - 0.5) / next };
  if (next === 1) view = { zoom: 1, x: 0.5, y: 0.5 };
  draw();
}

function inside(line, x, y) {
  let within = false;
  for (let i = 0, j = line.length - 1; i < line.length; j = i++) {
    const [[xi, yi], [xj, yj]] = [line[i], line[j]];
    if (yi > y !== yj > y && x < ((xj - xi) * (y - yi)) / (yj - yi) + xi) within = !within;
  }
  return within;
}

function nearest(x, y, reach = 14) {
  let [best, found] = [reach * reach, -1];
  points?.ids.forEach((_, place) => {
    const [px, py] = toScreen(points.x[place], points.y[place]);
    const far = (px - x) ** 2 + (py - y) ** 2;
    if (far < best && isShown(place)) [best, found] = [far, place];
  });
  return found;
}

function hover(x, y) {
  const place = nearest(x, y);
  tip.hidden = place < 0;
  if (place < 0) return;
  const picture = points.modalities[place] === "image" ? make("img", { src: address.thumbnail(points.ids[place], 128), alt: "" }) : null;
  tip.replaceChildren(...[picture, points.names[place]].filter(Boolean));
  tip.style.left = `${Math.min(x + 14, canvas.clientWidth - 200)}px`;
  tip.style.top = `${Math.min(y + 14, canvas.clientHeight - 60)}px`;
}

function choose(takes) {
  if (!points) return;
  const places = points.ids.map((_, place) => place).filter((place) => isShown(place) && takes(...toScreen(points.x[place], points.y[place]), place));
  chosen = new Set(places.map((place) => points.ids[place]));
  const entries = places.slice(0, 200).map((place) => {
    const [id, kind] = [points.ids[place], points.modalities[place]];
    const sight = kind === "image" ? make("img", { src: address.thumbnail(id, 96), alt: "", loading: "lazy" }) : make("span", { class: `glyph of-${kind}` }, icon(kind));
    return make("li", {}, make("button", { type: "button", class: "entry", title: "Search for what is like it", onclick: () => actions.like(id) }, sight, make("span", {}, points.names[place])));
  });
  list.replaceChildren(
    make("h2", {}, places.length ? `${places.length.toLocaleString("en")} chosen${places.length > 200 ? ", the first 200" : ""}` : "Nothing there; draw around some points"),
    make("ul", {}, ...entries),
  );
}
