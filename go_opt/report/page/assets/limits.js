// What binds, what comes next and what would help: rows with bars.

function showLimits() {
  const place = byId("limits");
  const { limits } = data;
  const binding = limits.path ? [pathColumn(limits.path)] : limits.binding.map((term) => termColumn(term, limits.waits));
  place.append(make("div", {}, ...binding));
  place.append(make("div", {}, limits.next.length ? nextColumn(limits) : null, helpColumn(limits)));
  for (const line of limits.lines) {
    byId("lines").append(make("li", { class: line.startsWith("  ") ? "inner" : "" }, ...withNames(line.trim())));
  }
}

function row(head, seconds, share, why, kind) {
  return make("div", { class: `row ${kind}` },
    make("div", { class: "head" }, head, make("span", { class: "number" }, seconds)),
    makeBar(share),
    why ? make("div", { class: "why" }, why) : null);
}

function partRow(part, kind) {
  return row(opLink(part.op, part.name), `${formatDuration(part.seconds)} · ${formatShare(part.share)}`, part.share, part.note, kind);
}

function termColumn(term, waits) {
  const busiest = `${term.name}, ${formatDuration(term.seconds)}`;
  const column = make("div", { class: "part" }, make("h3", {}, `What binds: ${waits ?? busiest}`));
  if (waits) column.append(make("p", {}, `The busiest: ${busiest}`));
  if (term.chips > 1) {
    column.append(make("p", { class: "quiet" }, `Times of kernels are of one inference, of which each chip runs one in ${term.chips}.`));
  }
  column.append(...term.parts.map((part) => partRow(part, "binds")));
  if (term.left_out) column.append(make("p", { class: "quiet" }, `and ${formatShare(term.left_out_share)} in ${term.left_out} more`));
  return column;
}

function pathColumn(path) {
  const column = make("div", { class: "part" }, make("h3", {}, "What binds: the critical path"));
  for (const line of path.lines) column.append(make("p", { class: "quiet" }, line));
  column.append(...path.pieces.map((piece) => partRow(piece, "binds")));
  return column;
}

function nextColumn(limits) {
  const column = make("div", { class: "part" }, make("h3", {}, "Next"));
  if (limits.more_binding) column.append(make("p", { class: "quiet" }, `${limits.more_binding} more take as long as what binds.`));
  for (const term of limits.next) {
    column.append(row(make("span", {}, term.name), `${formatDuration(term.seconds)} · ${formatShare(term.share)}`, term.share, "", ""));
  }
  return column;
}

function helpColumn(limits) {
  const what = data.objective === "latency" ? "makespan" : "interval";
  const column = make("div", { class: "part" }, make("h3", {}, "What would help, with this plan as it is"));
  for (const help of limits.helps) {
    const gain = `${formatDuration(help.seconds)} · ${((help.share - 1) * 100).toFixed(1)}%`;
    column.append(row(make("span", {}, help.change), gain, help.share, help.note, "helps"));
  }
  const none = "None of faster links, compute, memory or host by itself.";
  column.append(make("p", { class: "quiet" }, limits.helps.length ? `Bars are the ${what} then, as a share of today's.` : none));
  const list = make("ul", { class: "lines" });
  for (const line of limits.help_lines) list.append(make("li", {}, ...withNames(line.charAt(0).toUpperCase() + line.slice(1))));
  column.append(list);
  return column;
}
