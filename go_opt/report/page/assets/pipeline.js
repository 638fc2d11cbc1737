// A card for each stage: how full it is, and what it sends where.

function showPipeline() {
  const whole = data.objective === "latency" ? "makespan" : "interval";
  byId("pipeline-text").textContent =
    `Loads are shares of the ${whole}. ×N: N chips share the inferences; each runs every Nth.` +
    (data.overlap ? "" : " On this target a chip's transfers take place before or after compute and add to it.");
  const list = byId("pipeline");
  const [hostIn, hostOut] = data.host;
  list.append(hostCard(hostIn, "inputs and streamed weights"));
  data.stages.forEach((stage, i) => list.append(stageCard(stage, i)));
  list.append(hostCard(hostOut, "outputs"));
  for (const send of data.passing) {
    byId("passing").append(make("li", {}, `${send.link}, of a chip that runs no op: ${sendText(send)} to ${send.name}`));
  }
}

function hostCard(host, what) {
  return make("li", { class: "forward" },
    make("div", { class: "top" }, make("span", {}, host.name), host.binds ? bindsMark() : null),
    make("div", { class: "small" }, what),
    meter("link", `${formatDuration(host.seconds)} · ${formatShare(host.load)}`, [host.load], { binds: host.binds }));
}

function stageCard(stage, number) {
  const memory = [stage.weight_bytes / stage.sram_bytes, stage.peak_bytes / stage.sram_bytes];
  const held = stage.weight_bytes + stage.peak_bytes;
  const next = stage.sends.find((send) => send.to === number + 1);
  return make("li", { class: next || number === data.stages.length - 1 ? "forward" : "", "--stage": stage.colour },
    make("div", { class: "top" },
      make("span", {}, stage.name),
      stage.binds || stage.sends.some((send) => send.binds) ? bindsMark() : null,
      stage.chips > 1 ? make("span", { class: "times" }, `×${stage.chips}`) : null),
    make("div", { class: "small" }, `${counted(stage.ops, "op")}, ${counted(stage.kernels, "kernel")}`),
    meter("compute", `${formatDuration(stage.busy_s)} · ${formatShare(stage.load)}`, [stage.load], { tone: stage.colour, binds: stage.binds }),
    meter("memory", `${formatBytes(held)} of ${formatBytes(stage.sram_bytes)}`, memory),
    stage.stream_bytes ? make("div", { class: "small" }, `streams ${formatBytes(stage.stream_bytes)} an inference`) : null,
    ...sendMeters(stage.sends));
}

function bindsMark() {
  return make("span", { class: "mark" }, "binds");
}

const MOST_SENDS = 3;

function sendMeters(sends) {
  const meters = sends.slice(0, MOST_SENDS).map((send) => {
    const box = meter(`→ ${send.name}`, sendText(send), [send.load], { binds: send.binds });
    const links = send.links > 1 ? `; the busiest of ${send.links} links` : "";
    box.title = `${send.link}: ${formatBytes(send.bytes)} of ${counted(send.tensors, "tensor")}${links}`;
    return box;
  });
  const more = sends.length - MOST_SENDS;
  return more > 0 ? [...meters, make("div", { class: "small" }, `and to ${more} more`)] : meters;
}

function sendText(send) {
  return `${formatDuration(send.seconds)} · ${formatShare(send.load)}`;
}

function meter(label, text, shares, { tone = null, binds = false } = {}) {
  const track = make("div", { class: "track" });
  shares.forEach((share, i) => {
    const part = make("div", { class: i ? "part second" : "part" });
    part.style.width = `${Math.min(share, 1) * 100}%`;
    track.append(part);
  });
  const properties = tone === null ? { class: "meter" } : { class: "meter", "--tone": tone };
  if (binds) properties.class += " binding";
  return make("div", properties, make("span", {}, label), make("span", { class: "number" }, text), track);
}
