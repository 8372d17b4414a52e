// The map of the collection: density, colour by modality or column, a lasso selection, and the position of the query.
import { MODALITY_LABELS, byId, themeColour, icon, make } from "./elements.js";
import { isEmpty, state } from "./query.js";
import { fetchMap, locateQuery, urls, usableParts } from "./requests.js";

const container = byId("map");
// Colours of the most frequent values, distinct in hue and lightness. All other values are grey.
const HUES = ["#0f8f7f", "#d9730d", "#7a62e0", "#c2417c", "#3d8bd4", "#8a8f1d", "#b5483a", "#5a7d4a", "#946b2d", "#6b7f99"];
let points = null;
let queryPosition = null;
let view = { x: 0.5, y: 0.5, zoom: 1 };
let lasso = [];
let selected = new Set();
let canvas, tip, list, legend, actions;

export async function openMap(collection, mapActions) {
  actions = mapActions;
  if (!container.firstChild) build(collection);
  legend.replaceChildren();
  list.replaceChildren(make("h2", {}, "Draw around points to list them"), make("p", { class: "note", role: "status" }, points ? "" : "Computing the map; this takes a while the first time …"));
  try {
    points = await fetchMap(state.colour);
    list.replaceChildren(make("h2", {}, "Draw around points to list them"), make("p", { class: "note" }, `${points.ids.length.toLocaleString("en")} of ${points.total.toLocaleString("en")} items. Drag to draw around points, scroll to zoom; or move the cross with the arrow keys and press Enter.`));
    renderLegend();
    drawMap();
    await locate();
    drawMap();
  } catch (error) {
    list.replaceChildren(make("p", { class: "note", role: "alert" }, error.message));
  }
}

async function locate() {
  queryPosition = null;
  const parts = usableParts(state.parts);
  if (!isEmpty() && parts.length) queryPosition = await locateQuery(parts).catch(() => null);
}

function build(collection) {
  const columnSelect = make("select", { id: "map-colour", onchange: (event) => { state.colour = event.target.value; actions.onChange(); } },
    make("option", { value: "" }, "modality"), ...Object.keys(collection.columns).map((name) => make("option", { value: name, selected: state.colour === name }, name)));
  const reset = make("button", { type: "button", class: "soft", onclick: () => { view = { x: 0.5, y: 0.5, zoom: 1 }; drawMap(); } }, "Reset view");
  canvas = make("canvas", { tabindex: "0", role: "application", "aria-label": "Map of the collection: arrow keys move a cross, plus and minus zoom, Enter lists the items around the cross" });
  tip = make("div", { class: "map-tip", hidden: true });
  list = make("div", { class: "map-list", "aria-live": "polite" });
  legend = make("ul", { class: "map-legend", "aria-label": "Colours" });
  container.append(
    make("div", { class: "map-bar" }, make("label", { for: "map-colour" }, "colour by", columnSelect), reset),
    make("div", { class: "map-layout" }, make("div", {}, make("div", { class: "map-field" }, canvas, tip), legend), list),
  );
  listenToCanvas();
  new ResizeObserver(drawMap).observe(canvas);
}

const toScreen = (x, y) => [((x - view.x) * view.zoom + 0.5) * canvas.clientWidth, ((y - view.y) * view.zoom + 0.5) * canvas.clientHeight];
const toMap = (x, y) => [(x / canvas.clientWidth - 0.5) / view.zoom + view.x, (y / canvas.clientHeight - 0.5) / view.zoom + view.y];

const isShown = (index) => !state.modalities.length || state.modalities.includes(points.modalities[index]);

function pointColour(index) {
  if (!points.values) return themeColour(points.modalities[index]);
  const value = points.values[index];
  const valueIndex = points.legend.indexOf(value);
  return valueIndex < 0 ? themeColour("soft") : HUES[valueIndex % HUES.length];
}

function renderLegend() {
  const entries = points.values ? points.legend.slice(0, HUES.length).map((name, index) => [name, HUES[index]]) : Object.entries(MODALITY_LABELS).filter(([modality]) => points.modalities.includes(modality)).map(([modality, name]) => [name, themeColour(modality)]);
  legend.replaceChildren(...entries.map(([name, background]) => {
    const dot = make("i");
    dot.style.background = background;
    return make("li", {}, dot, name);
  }));
}

export function drawMap() {
  if (!canvas || !points || container.hidden) return;
  const ratio = devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  drawDensity(context, width, height);
  const size = Math.max(2.1, Math.min(6, 130 / Math.sqrt(points.ids.length))) * Math.sqrt(view.zoom);
  context.globalAlpha = 0.85;
  points.ids.forEach((id, index) => {
    const [x, y] = toScreen(points.x[index], points.y[index]);
    if (!isShown(index) || x < -9 || y < -9 || x > width + 9 || y > height + 9) return;
    context.fillStyle = pointColour(index);
    context.beginPath();
    context.arc(x, y, selected.has(id) ? size + 2 : size, 0, 7);
    context.fill();
    if (selected.has(id)) { context.strokeStyle = themeColour("ink"); context.lineWidth = 1.5; context.stroke(); }
  });
  context.globalAlpha = 1;
  if (queryPosition) drawStar(context, ...toScreen(queryPosition.x, queryPosition.y));
  if (lasso.length) {
    context.beginPath();
    lasso.forEach(([x, y], index) => (index ? context.lineTo(x, y) : context.moveTo(x, y)));
    context.strokeStyle = themeColour("accent");
    context.lineWidth = 2;
    context.setLineDash([6, 4]);
    context.stroke();
    context.setLineDash([]);
  }
  if (document.activeElement === canvas && cross) {
    const [x, y] = toScreen(...cross);
    context.strokeStyle = themeColour("ink");
    context.strokeRect(x - SELECTION_RADIUS, y - SELECTION_RADIUS, 2 * SELECTION_RADIUS, 2 * SELECTION_RADIUS);
    context.beginPath(); context.moveTo(x - 8, y); context.lineTo(x + 8, y); context.moveTo(x, y - 8); context.lineTo(x, y + 8); context.stroke();
  }
}

// Draw points as transparent discs, so that overlaps show the density.
function drawDensity(context, width, height) {
  const radius = Math.round(Math.min(width, height) / 16);
  const disc = make("canvas", { width: 2 * radius, height: 2 * radius });
  const brush = disc.getContext("2d");
  const fade = brush.createRadialGradient(radius, radius, 0, radius, radius, radius);
  fade.addColorStop(0, themeColour("soft"));
  fade.addColorStop(1, "transparent");
  brush.fillStyle = fade;
  brush.fillRect(0, 0, 2 * radius, 2 * radius);
  context.globalAlpha = Math.max(0.012, Math.min(0.12, 45 / points.ids.length));
  points.x.forEach((_, index) => {
    if (!isShown(index)) return;
    const [x, y] = toScreen(points.x[index], points.y[index]);
    context.drawImage(disc, x - radius, y - radius);
  });
  context.globalAlpha = 1;
}

function drawStar(context, x, y) {
  context.beginPath();
  for (let i = 0; i < 10; i++) {
    const [angle, distance] = [(i * Math.PI) / 5 - Math.PI / 2, i % 2 ? 6 : 15];
    context.lineTo(x + distance * Math.cos(angle), y + distance * Math.sin(angle));
  }
  context.closePath();
  context.fillStyle = themeColour("accent");
  context.strokeStyle = themeColour("card");
  context.lineWidth = 2;
  context.fill();
  context.stroke();
  context.font = "600 13px system-ui, sans-serif";
  context.lineWidth = 4;
  context.strokeText("your query", x + 18, y + 5);
  context.fillStyle = themeColour("ink");
  context.fillText("your query", x + 18, y + 5);
}

const SELECTION_RADIUS = 40;
let cross = null;

function listenToCanvas() {
  canvas.addEventListener("pointerdown", (event) => { canvas.setPointerCapture(event.pointerId); lasso = [[event.offsetX, event.offsetY]]; });
  canvas.addEventListener("pointermove", (event) => {
    if (lasso.length) { lasso.push([event.offsetX, event.offsetY]); tip.hidden = true; return drawMap(); }
    return hover(event.offsetX, event.offsetY);
  });
  canvas.addEventListener("pointerup", (event) => {
    const outline = lasso;
    lasso = [];
    if (outline.length > 5) selectPoints((x, y) => isInPolygon(outline, x, y));
    else { const nearestPoint = findNearest(event.offsetX, event.offsetY); selectPoints((_, __, index) => index === nearestPoint); }
    drawMap();
  });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  canvas.addEventListener("focus", () => { cross ??= [view.x, view.y]; drawMap(); });
  canvas.addEventListener("blur", drawMap);
  canvas.addEventListener("wheel", (event) => { event.preventDefault(); zoom(event.deltaY < 0 ? 1.2 : 1 / 1.2, event.offsetX, event.offsetY); }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    const step = 0.04 / view.zoom;
    const moves = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, -step], ArrowDown: [0, step] };
    if (moves[event.key]) cross = [cross[0] + moves[event.key][0], cross[1] + moves[event.key][1]];
    else if (event.key === "+" || event.key === "=") zoom(1.3, ...toScreen(...cross));
    else if (event.key === "-") zoom(1 / 1.3, ...toScreen(...cross));
    else if (event.key === "Enter") { const [cx, cy] = toScreen(...cross); selectPoints((x, y) => Math.abs(x - cx) < SELECTION_RADIUS && Math.abs(y - cy) < SELECTION_RADIUS); }
    else return;
    event.preventDefault();
    event.stopPropagation();
    drawMap();
  });
}

function zoom(factor, x, y) {
  const [mx, my] = toMap(x, y);
  const next = Math.max(1, Math.min(40, view.zoom * factor));
  view = { zoom: next, x: mx - (x / canvas.clientWidth - 0.5) / next, y: my - (y / canvas.clientHeight - 0.5) / next };
  if (next === 1) view = { zoom: 1, x: 0.5, y: 0.5 };
  drawMap();
}

function isInPolygon(outline, x, y) {
  let isWithin = false;
  for (let i = 0, j = outline.length - 1; i < outline.length; j = i++) {
    const [[xi, yi], [xj, yj]] = [outline[i], outline[j]];
    if (yi > y !== yj > y && x < ((xj - xi) * (y - yi)) / (yj - yi) + xi) isWithin = !isWithin;
  }
  return isWithin;
}

function findNearest(x, y, radius = 14) {
  let [best, nearestIndex] = [radius * radius, -1];
  points?.ids.forEach((_, index) => {
    const [px, py] = toScreen(points.x[index], points.y[index]);
    const distance = (px - x) ** 2 + (py - y) ** 2;
    if (distance < best && isShown(index)) [best, nearestIndex] = [distance, index];
  });
  return nearestIndex;
}

function hover(x, y) {
  const index = findNearest(x, y);
  tip.hidden = index < 0;
  if (index < 0) return;
  const image = points.modalities[index] === "image" ? make("img", { src: urls.thumbnail(points.ids[index], 128), alt: "" }) : null;
  tip.replaceChildren(...[image, points.names[index]].filter(Boolean));
  tip.style.left = `${Math.min(x + 14, canvas.clientWidth - 200)}px`;
  tip.style.top = `${Math.min(y + 14, canvas.clientHeight - 60)}px`;
}

function selectPoints(isInside) {
  if (!points) return;
  const indices = points.ids.map((_, index) => index).filter((index) => isShown(index) && isInside(...toScreen(points.x[index], points.y[index]), index));
  selected = new Set(indices.map((index) => points.ids[index]));
  const entries = indices.slice(0, 200).map((index) => {
    const [id, modality] = [points.ids[index], points.modalities[index]];
    const preview = modality === "image" ? make("img", { src: urls.thumbnail(id, 96), alt: "", loading: "lazy" }) : make("span", { class: `glyph of-${modality}` }, icon(modality));
    return make("li", {}, make("button", { type: "button", class: "entry", title: "Search for similar items", onclick: () => actions.like(id) }, preview, make("span", {}, points.names[index])));
  });
  list.replaceChildren(
    make("h2", {}, indices.length ? `${indices.length.toLocaleString("en")} selected${indices.length > 200 ? ", the first 200" : ""}` : "No points selected; draw around points to select them"),
    make("ul", {}, ...entries),
  );
}
