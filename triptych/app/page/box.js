// The one box: words, files by picker, drop and paste, and the microphone.
import { byId, icon, make } from "./elements.js";
import { state } from "./query.js";
import { record } from "./recorder.js";

const input = byId("text");
let recording = null;

export function boxed(words) {
  const known = state.parts.find((part) => part.boxed);
  if (!words) state.parts = state.parts.filter((part) => part !== known);
  else if (known) known.text = words;
  else state.parts = [{ kind: "text", text: words, weight: 1, boxed: true }, ...state.parts];
}

export function fill() {
  // The first plain text of the address is what stands in the box.
  const first = state.parts.find((part) => part.boxed) ?? state.parts.find((part) => part.kind === "text" && part.weight === 1 && !part.kept);
  if (first) first.boxed = true;
  if (document.activeElement !== input || !first) input.value = first?.text ?? "";
}

export function addFiles(files, changed) {
  for (const file of files) state.parts.push({ kind: "file", name: file.name || "pasted", file, weight: 1 });
  if (files.length) changed();
}

export function listen(changed, complain) {
  byId("add").append(icon("plus"));
  byId("file").append(icon("file"));
  byId("record").append(icon("microphone"));
  let timer = 0;
  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => { boxed(input.value.trim()); changed({ typing: true }); }, 350);
  });
  byId("form").addEventListener("submit", (event) => {
    event.preventDefault();
    clearTimeout(timer);
    boxed(input.value.trim());
    changed();
  });
  const add = () => {
    clearTimeout(timer);
    boxed(input.value.trim());
    const part = state.parts.find((other) => other.boxed);
    if (!part) return input.focus();
    delete part.boxed;
    part.kept = true;
    input.value = "";
    input.focus();
    return changed();
  };
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && event.shiftKey) { event.preventDefault(); add(); }
  });
  byId("add").addEventListener("click", add);
  byId("file").addEventListener("click", () => byId("picker").click());
  byId("picker").addEventListener("change", (event) => { addFiles([...event.target.files], changed); event.target.value = ""; });
  byId("record").addEventListener("click", () => toggleRecording(changed, complain));
  listenForFiles(changed);
}

function listenForFiles(changed) {
  let depth = 0;
  const shade = byId("drop");
  const hasFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
  addEventListener("dragenter", (event) => { if (hasFiles(event)) { depth += 1; shade.hidden = false; } });
  addEventListener("dragleave", (event) => { if (hasFiles(event) && --depth <= 0) { depth = 0; shade.hidden = true; } });
  addEventListener("dragover", (event) => { if (hasFiles(event)) event.preventDefault(); });
  addEventListener("drop", (event) => {
    depth = 0;
    shade.hidden = true;
    if (!hasFiles(event)) return;
    event.preventDefault();
    addFiles([...event.dataTransfer.files], changed);
  });
  addEventListener("paste", (event) => {
    const files = [...(event.clipboardData?.files ?? [])];
    if (files.length) { event.preventDefault(); addFiles(files, changed); }
  });
}

export async function toggleRecording(changed, complain) {
  const button = byId("record");
  if (recording) return recording.stop();
  if (!navigator.mediaDevices?.getUserMedia || !window.MediaRecorder) {
    return complain("this browser gives no microphone to this address; open the page at http://127.0.0.1 or by https");
  }
  const time = make("span", {}, "0.0 s");
  try {
    recording = await record((seconds) => { time.textContent = `${seconds.toFixed(1)} s`; });
    button.setAttribute("aria-pressed", "true");
    button.setAttribute("aria-label", "Stop recording and search");
    button.replaceChildren(icon("stop", 16), time);
    addFiles([await recording.file], changed);
  } catch (error) {
    complain(error.name === "NotAllowedError" ? "the microphone was not allowed; allow it in the address bar and try again" : `no recording (${error.message})`);
  } finally {
    recording = null;
    button.setAttribute("aria-pressed", "false");
    button.setAttribute("aria-label", "Record a sound");
    button.replaceChildren(icon("microphone"));
  }
  return undefined;
}
