// Audio hits: waveform or spectrogram, the matching segment, and one player that all hits share.
import { byId, formatTime, themeColour, icon, make } from "./elements.js";
import { fetchPeaks, urls } from "./requests.js";

const player = byId("player");
let current = null; // the audio strip that is playing
const visibility = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (entry.isIntersecting) {
      visibility.unobserve(entry.target);
      entry.target.show();
    }
  }
}, { rootMargin: "300px" });

player.addEventListener("timeupdate", () => current?.move(player.currentTime));
player.addEventListener("ended", stop);
player.addEventListener("error", () => {
  if (!current) return;
  if (current.usesWav) return current.showError("this browser cannot play the file");
  current.usesWav = true; // unsupported format: play a WAV of the segment instead
  current.play();
});

export function stop() {
  player.pause();
  current?.showStopped();
  current = null;
}

export function makeAudioStrip(hit, options = {}) {
  const label = `Play ${hit.name}`;
  const canvas = make("canvas");
  const spectrogram = make("img", { class: "spectrogram", alt: "", hidden: true });
  const segment = make("div", { class: "segment", hidden: true });
  const cursor = make("div", { class: "cursor", hidden: true });
  const button = make("button", { type: "button", class: "play", "aria-label": label, tabindex: options.tabindex ?? 0 }, icon("play"));
  const toggle = make("button", { type: "button", class: "toggle-view", tabindex: options.tabindex ?? 0, "aria-label": "Show the spectrogram", title: "Waveform or spectrogram (s)" }, "spectrogram");
  const time = make("span", { class: "time" }, "");
  const box = make("div", { class: "audio" }, canvas, spectrogram, segment, cursor, button, toggle, time);
  let waveform = null;

  const toFraction = (seconds) => (seconds - waveform.start) / Math.max(1e-6, waveform.end - waveform.start);

  box.show = async () => {
    try {
      waveform = await fetchPeaks(hit.id, 240);
    } catch (error) {
      return box.showError(error.message);
    }
    draw(canvas, waveform.peaks);
    time.textContent = formatTime(waveform.duration);
    const [start, end] = [hit.start ?? 0, hit.end ?? waveform.duration];
    if (start > waveform.start + 0.05 || end < waveform.end - 0.05) {
      segment.hidden = false;
      segment.style.left = `${100 * Math.max(0, toFraction(start))}%`;
      segment.style.right = `${100 * Math.max(0, 1 - toFraction(end))}%`;
      time.textContent = `${formatTime(start)} – ${formatTime(end)}`;
    }
  };
  box.redraw = () => waveform && draw(canvas, waveform.peaks);
  box.showError = (message) => {
    showStopped();
    box.append(make("p", { class: "error", role: "alert" }, message));
  };
  box.move = (seconds) => {
    const position = box.usesWav ? seconds + (hit.start ?? 0) : seconds;
    if (hit.end !== null && hit.end !== undefined && position >= hit.end) return stop();
    if (waveform) cursor.style.left = `${100 * Math.min(1, Math.max(0, toFraction(position)))}%`;
  };
  box.play = (from = null) => {
    if (current !== box) stop();
    current = box;
    player.src = box.usesWav ? urls.audio(hit.id) : urls.media(hit.id);
    const begin = box.usesWav ? 0 : (from ?? hit.start ?? 0);
    player.currentTime = begin;
    player.play().catch((error) => { if (error.name === "NotAllowedError") showStopped(); });
    cursor.hidden = false;
    button.replaceChildren(icon("pause"));
    button.setAttribute("aria-label", `Stop ${hit.name}`);
    box.classList.add("playing");
  };
  const showStopped = () => {
    cursor.hidden = true;
    button.replaceChildren(icon("play"));
    button.setAttribute("aria-label", label);
    box.classList.remove("playing");
  };
  box.showStopped = showStopped;
  box.toggle = () => (current === box ? stop() : box.play());
  box.toggleView = () => {
    const isSpectrogram = spectrogram.hidden;
    if (isSpectrogram && !spectrogram.src) spectrogram.src = urls.spectrogram(hit.id);
    spectrogram.hidden = !isSpectrogram;
    canvas.hidden = isSpectrogram;
    box.classList.toggle("spectral", isSpectrogram);
    toggle.textContent = isSpectrogram ? "waveform" : "spectrogram";
    toggle.setAttribute("aria-label", isSpectrogram ? "Show the waveform" : "Show the spectrogram");
  };
  box.addEventListener("click", (event) => {
    if (event.target === toggle) return box.toggleView();
    if (button.contains(event.target) || !waveform || box.usesWav) return box.toggle();
    if (current === box) return stop();
    const fraction = (event.clientX - box.getBoundingClientRect().left) / box.clientWidth;
    const seconds = waveform.start + fraction * (waveform.end - waveform.start);
    const inside = seconds >= (hit.start ?? 0) && seconds < (hit.end ?? Infinity);
    return box.play(inside ? seconds : null);
  });
  visibility.observe(box);
  return box;
}

function draw(canvas, peaks) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth || 300;
  const height = canvas.clientHeight || 170;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  context.fillStyle = themeColour("audio");
  const maximum = Math.max(0.05, ...peaks.flat().map(Math.abs));
  const step = width / peaks.length;
  peaks.forEach(([low, high], index) => {
    const top = height / 2 - (high / maximum) * height * 0.42;
    const bottom = height / 2 - (low / maximum) * height * 0.42;
    context.fillRect(index * step, top, Math.max(1, step - 0.6), Math.max(1, bottom - top));
  });
}
