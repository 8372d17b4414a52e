// Record from the microphone to a WAV file (16 bits, mono). Browsers record in different formats; the server can always read WAV.
const MAX_MILLISECONDS = 30_000;

export async function record(onTick) {
  const stream = await navigator.mediaDevices.getUserMedia({ audio: { echoCancellation: false, noiseSuppression: false, autoGainControl: false } });
  const recorder = new MediaRecorder(stream);
  const chunks = [];
  recorder.ondataavailable = (event) => chunks.push(event.data);
  const stopped = new Promise((resolve) => { recorder.onstop = resolve; });
  const started = performance.now();
  recorder.start();
  const timer = setInterval(() => {
    onTick((performance.now() - started) / 1000);
    if (performance.now() - started > MAX_MILLISECONDS) stop();
  }, 100);
  function stop() {
    if (recorder.state !== "inactive") recorder.stop();
  }
  const file = stopped.then(async () => {
    clearInterval(timer);
    stream.getTracks().forEach((track) => track.stop());
    return encodeWav(await decode(new Blob(chunks, { type: recorder.mimeType })));
  });
  return { stop, file };
}

async function decode(blob) {
  const context = new AudioContext();
  try {
    return await context.decodeAudioData(await blob.arrayBuffer());
  } finally {
    context.close();
  }
}

function encodeWav(audio) {
  const length = audio.length;
  const view = new DataView(new ArrayBuffer(44 + 2 * length));
  const write = (offset, text) => [...text].forEach((c, i) => view.setUint8(offset + i, c.charCodeAt(0)));
  write(0, "RIFF"); view.setUint32(4, 36 + 2 * length, true); write(8, "WAVEfmt ");
  view.setUint32(16, 16, true); view.setUint16(20, 1, true); view.setUint16(22, 1, true);
  view.setUint32(24, audio.sampleRate, true); view.setUint32(28, 2 * audio.sampleRate, true);
  view.setUint16(32, 2, true); view.setUint16(34, 16, true); write(36, "data"); view.setUint32(40, 2 * length, true);
  const channels = Array.from({ length: audio.numberOfChannels }, (_, c) => audio.getChannelData(c));
  for (let i = 0; i < length; i++) {
    const mean = channels.reduce((sum, channel) => sum + channel[i], 0) / channels.length;
    view.setInt16(44 + 2 * i, Math.round(Math.max(-1, Math.min(1, mean)) * 32767), true);
  }
  const now = new Date();
  const name = `recording ${String(now.getHours()).padStart(2, "0")}-${String(now.getMinutes()).padStart(2, "0")}-${String(now.getSeconds()).padStart(2, "0")}.wav`;
  return new File([view.buffer], name, { type: "audio/wav" });
}
