// Asks this node for page.json every second and shows it. Text from the node gets into the page as text
// only: there is no markup in it, whatever a name says.
"use strict";

const POLL_MS = 1000;
const RESPONSE_MS = 4000;
const CLAIMS_MS = 3000;
const GAP_S = 2.6;
const SVG = "http://www.w3.org/2000/svg";

const $ = (id) => document.getElementById(id);
const numbers = new Intl.NumberFormat("en");
const past = { run: null, fields: [], samples: [], allS: 300, spanS: 300 };
let paused = false;
let lastResponseMs = null;
let claimsAtMs = -CLAIMS_MS;
let wake = () => {};

// -- words

function number(value) {
  return value === null || value === undefined ? "–" : numbers.format(value);
}

function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (bytes >= 1024 && at < units.length - 1) { bytes /= 1024; at += 1; }
  return `${at && bytes < 10 ? bytes.toFixed(1) : Math.round(bytes)} ${units[at]}`;
}

function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const s = Math.floor(seconds);
  if (s < 60) return `${s} s`;
  const pair = (large, word, small, other) => `${large} ${word}${small ? ` ${small} ${other}` : ""}`;
  if (s < 3600) return pair(Math.floor(s / 60), "min", s % 60, "s");
  if (s < 86400) return pair(Math.floor(s / 3600), "h", Math.floor(s % 3600 / 60), "min");
  return pair(Math.floor(s / 86400), "d", Math.floor(s % 86400 / 3600), "h");
}

function clock(ms) { return new Date(ms).toLocaleTimeString("en-GB"); }

function rate(value) { return number(value < 10 ? value : Math.round(value)); }

function many(count, word) { return `${count === 0 ? "no" : count} ${word}${count === 1 ? "" : "s"}`; }

function ago(ms) {
  if (ms === null) return "never";
  return ms < 2000 ? "now" : `${span(ms / 1000)} ago`;
}

function duration(ms) {
  if (ms < 10) return `${Number(ms.toFixed(ms < 1 ? 2 : 1))} ms`;
  return ms < 1000 ? `${Math.round(ms)} ms` : `${Number((ms / 1000).toFixed(1))} s`;
}

// -- small tools: an element is touched only if it changes, so that selections and readers survive

function text(element, value) {
  const wanted = String(value);
  if (element.textContent !== wanted) element.textContent = wanted;
}

function style(element, value) {
  if (element.className !== value) element.className = value;
}

function make(tag, className, content) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (content !== undefined) element.textContent = content;
  return element;
}

// One child for each item, in order; `create` makes a child, `update` fills it.
function each(parent, items, create, update) {
  while (parent.children.length > items.length) parent.lastElementChild.remove();
  items.forEach((item, at) => {
    if (at >= parent.children.length) parent.append(create());
    update(parent.children[at], item);
  });
}

// A row of a table: a cell for each [class, label].
function rowOf(cells) {
  const row = make("tr");
  // Some browsers forget what a table is when a phone's layout makes cards of its rows.
  row.setAttribute("role", "row");
  for (const [className, label] of cells) {
    const cell = make("td", className);
    cell.setAttribute("role", "cell");
    cell.dataset.label = label;
    row.append(cell);
  }
  return row;
}

// A list of terms; a third entry stands small below the second.
function terms(list, entries) {
  const parts = entries.flatMap(([name, value, more]) => [["dt", name], ["dd", value, more || ""]]);
  if (list.children.length !== parts.length) {
    list.replaceChildren(...parts.map(([tag]) => make(tag)));
    for (const dd of list.querySelectorAll("dd")) dd.append(make("span"), make("small"));
  }
  parts.forEach(([tag, value, more], at) => {
    const element = list.children[at];
    if (tag === "dt") { text(element, value); return; }
    text(element.firstChild, value);
    text(element.lastChild, more);
  });
}

// -- sections

function showHead(now) {
  const { status } = now;
  const leader = now.leader_id;
  let heading = `Node ${leader} leads`;
  if (leader === null) heading = status.leader_id === null ? "No leader" : "No leader responds";
  text($("leads"), heading);
  style($("leads"), leader === null ? "lost" : "");
  const since = `${clock(now.at_ms - status.role_since_s * 1000)} (${span(status.role_since_s)})`;
  let words = `Epoch ${status.epoch}`;
  if (leader === null) words += `. This node is ${status.role}${leaderless(now)}`;
  else if (status.role === "leader") words += `, since ${since}`;
  else words += `. This node follows it since ${since}`;
  text($("since"), words);
  text($("viewer"), `as node ${status.node_id} sees it · cluster ${status.cluster_id || "without id yet"}`);
  const [errors, warnings] = ["error", "warning"].map(
    (level) => now.findings.filter((one) => one.level === level).length);
  document.title = `${errors + warnings ? `(${errors + warnings}) ` : ""}${heading} · quorumd`;
  // Said aloud when it changes; what is written below changes every second.
  text($("said"), `${heading}, ${many(errors, "error")}, ${many(warnings, "warning")}`);
}

function leaderless(now) {
  const last = past.samples.findLast((one) => one.leader_id !== null);
  if (last) return `. The last leader, node ${last.leader_id}, was lost about ${span(now.now_s - last.at_s)} ago`;
  const known = now.status.leader_id;
  return known === null ? ", and has seen no leader yet" : `. The last leader, node ${known}, does not respond to it`;
}

function showFindings(now) {
  const found = now.findings.length ? now.findings
    : [{ level: "good", text: "Everything is as it should be." }];
  const names = { error: "Error", warning: "Warning", note: "Under way", good: "Good" };
  each($("wrong"), found, () => {
    const item = make("li");
    item.append(make("b"), make("span"));
    return item;
  }, (item, one) => {
    style(item, one.level in names ? one.level : "note");
    text(item.firstChild, `${names[one.level] || one.level}:`);
    text(item.lastChild, one.text);
  });
}

const HEALTH = {
  good: ["keeps up", "good"],
  behind: ["behind", "warning"],
  silent: ["silent", "error"],
  gone: ["not running", "error"],
  unknown: ["not heard of yet", "warning"],
};

function showReplicas(now) {
  const leaderReport = now.leader_report;
  let words = "";
  if (leaderReport.by === null) words = "Only a leader knows how far the others are. This is what this node knows by itself.";
  else if (leaderReport.age_s > 2.5) words = `What the leader said ${span(leaderReport.age_s)} ago.`;
  text($("report-note"), words);
  each($("replicas"), now.replicas, () => {
    const row = rowOf([["name", "Node"], ["role", "Role"], ["state", "State"], ["number", "Log end"],
      ["number", "Lag"], ["number", "Last contact"], ["address", "Address"]]);
    const [name, role, state] = row.children;
    name.append(make("span"), make("small"));
    role.append(make("span"));
    state.append(make("span"), make("small"));
    return row;
  }, (row, replica) => {
    const [name, role, state, end, lag, contact, address] = row.children;
    text(name.firstChild, `${replica.id}${replica.is_local ? " (this node)" : ""}`);
    text(name.lastChild, replica.storage_id || "");
    text(role.firstChild, replica.role);
    style(role.firstChild, `pill ${replica.role === "leader" ? "leader" : ""}`);
    let [word, level] = HEALTH[replica.health] || [replica.health, "warning"];
    if (replica.role === "leader" && replica.health === "good") word = "leads";
    else if (now.leader_report.by === null && replica.is_local) word = "this node";
    else if (replica.copied !== null) [word, level] = [`copies a snapshot: ${Math.floor(replica.copied * 100)} %`, "warning"];
    text(state.firstChild, word);
    style(state.firstChild, `health ${level}`);
    text(state.lastChild, replica.health === "behind" && replica.caught_up_ms !== null
      ? `for ${span(replica.caught_up_ms / 1000)}` : "");
    text(end, number(replica.end_offset));
    text(lag, number(replica.lag));
    text(contact, now.leader_report.by === null ? "–" : ago(replica.contact_ms));
    text(address, replica.addresses.join(", "));
  });
}

function keys(list) {
  const ids = list.map((key) => key.id);
  const doubled = ids.filter((id, at) => ids.indexOf(id) !== at);
  return list.map((key) => doubled.includes(key.id) ? `${key.id} (${key.storage_id})` : key.id).join(", ");
}

function showVoters(now) {
  const { voters } = now;
  const [inForce, committed] = [keys(voters.in_force), keys(voters.committed)];
  const entries = [["Committed", committed || "none"]];
  if (JSON.stringify(voters.in_force) !== JSON.stringify(voters.committed)) {
    entries.push(["In force", inForce, "not committed yet"]);
  }
  const majority = Math.floor(voters.in_force.length / 2) + 1;
  entries.push(["A majority is", `${majority} of ${voters.in_force.length}`]);
  if (voters.target !== null) entries.push(["Reassignment to", voters.target.join(", ")]);
  terms($("voters"), entries);
}

function showLog(now) {
  const { status, disk } = now;
  const committed = status.high_watermark < 0 ? "–" : number(status.high_watermark);
  terms($("log"), [
    ["Starts at", number(status.log_start_offset)],
    ["Ends at", number(status.log_end_offset)],
    ["Committed up to", committed],
    ["On disk", size(disk.log_bytes)],
    ["Disk", `${size(disk.free_bytes)} free`, disk.size_bytes === null ? "" : `of ${size(disk.size_bytes)}`],
  ]);
}

function showSnapshots(now) {
  const { newest, count, new_bytes: fresh, building, copying } = now.status.snapshots;
  terms($("snapshots"), [
    ["Newest ends at", newest === null ? "none yet" : number(newest.end_offset)],
    ["Taken", now.snapshot.age_s === null ? "–" : `${span(now.snapshot.age_s)} ago`],
    ["Size", size(now.snapshot.size_bytes)],
    ["Kept", number(count)],
    ["Written since", size(Math.max(0, fresh))],
  ]);
  const work = [];
  if (building !== null) work.push([`Taking one up to ${number(building.end_offset)}`, building.done]);
  if (copying !== null) {
    work.push([`Copying the leader's up to ${number(copying.end_offset)}: ${size(copying.position)} of ${size(copying.size_bytes)}`,
      copying.size_bytes ? copying.position / copying.size_bytes : 0]);
  }
  each($("work"), work, () => {
    const item = make("p");
    item.append(make("span"), make("progress"));
    return item;
  }, (item, [words, done]) => {
    text(item.firstChild, words);
    item.lastChild.value = Math.max(0, done);
    item.lastChild.setAttribute("aria-label", words);
  });
}

const CLIENT_AUTH = {
  none: "clients show no certificate",
  requested: "clients may show a certificate",
  required: "clients show a certificate",
};
const ROLES = { own: "", ca: "CA ", crl: "revocation list of " };

// Shown where anything is TLS; what is plaintext beside it is named.
function showAccess(now) {
  const { listeners, http, links, plaintext_connections: plaintext } = now.status;
  const places = [...(listeners || []), ...(http ? [{ ...http, name: "HTTP" }] : [])];
  $("access").hidden = places.every((one) => one.protocol === "PLAINTEXT");
  if ($("access").hidden) return;
  const entries = places.map((one) => {
    const lines = (one.certificates || []).map((each) => `${ROLES[each.role]}${each.subject} ${ending(each)}`);
    if (one.client_auth) lines.unshift(CLIENT_AUTH[one.client_auth]);
    const count = one.connections === undefined ? "" : `, ${many(one.connections, "connection")}`;
    return [one.name, `${one.protocol === "SSL" ? "TLS" : "plaintext"}${count}`, lines.join("; ")];
  });
  entries.push(["Other nodes are reached by", links === "SSL" ? "TLS" : "plaintext"]);
  entries.push(["In plaintext", many(plaintext, "connection")]);
  terms($("listeners"), entries);
}

function ending(certificate) {
  const left = certificate.ends_in_s;
  if (left === null) return "never ends";
  return left > 0 ? `ends in ${span(left)}` : `ended ${span(-left)} ago`;
}

const KINDS = { locks: "lock", elections: "election", registrations: "registration" };

// Locks, elections and registrations: hidden where nobody uses them.
function showClaims(claims, nowMs) {
  const names = claims.names || {};
  const rows = Object.entries(KINDS).flatMap(([kind, word]) => (names[kind] || []).map((one) => [word, one]));
  const notes = Object.entries(KINDS).filter(([kind]) => (claims.left_off || {})[kind])
    .map(([kind, word]) => `${many(claims.left_off[kind], word)} more: quorumctl locks prints them all.`);
  if (claims.withheld) notes.push(claims.withheld);
  if (claims.problem) notes.push(`This cannot be shown: ${claims.problem}`);
  if (claims.offset < claims.end_offset) {
    notes.push(`Read up to offset ${number(claims.offset)} of ${number(claims.end_offset)} so far.`);
  }
  $("claims").hidden = !rows.length && !notes.length;
  text($("claims-note"), notes.join(" "));
  $("claims-table").hidden = !rows.length;
  each($("claimed"), rows, () => {
    const row = rowOf([["name", "Name"], ["kind", "Kind"], ["holder", "Held by"], ["since", "Since"],
      ["renewed", "Renewed"], ["number", "Waiting"], ["address", "Value or comment"]]);
    row.children[2].append(make("span"), make("small"));
    return row;
  }, (row, [word, { name, holder, waiting }]) => {
    const [called, kind, by, since, renewed, queue, more] = row.children;
    text(called, name);
    text(kind, word);
    text(by.firstChild, holder === null ? "nobody" : `${holder.owner} on ${holder.host}, pid ${holder.pid}`);
    text(by.lastChild, holder === null ? "" : `token ${holder.token}`);
    text(since, holder === null ? "" : holder.since);
    const isTimed = holder !== null && holder.written_ms >= 0;
    text(renewed, isTimed ? ago(Math.max(0, nowMs - holder.written_ms)) : "");
    text(queue, number(waiting));
    text(more, holder === null ? "" : holder.value || holder.comment);
  });
}

function showAbout(now) {
  const { status } = now;
  text($("about"), `Node ${status.node_id}, quorumd ${status.version}, process ${status.pid}, ${status.storage_dir}`
    + ` (${status.storage_id})`);
  text($("report"), status.last_report ? `Reported last: ${status.last_report}` : "");
}

// -- plots

function showPast(now) {
  // A node that has just started has little to show: not less than a minute, not more than all.
  const known = past.samples.length ? now.now_s - past.samples[0].at_s : 0;
  const spanS = Math.min(past.allS, Math.max(60, known));
  past.spanS = spanS;
  const from = now.now_s - spanS;
  const seen = past.samples.filter((one) => one.at_s >= from);
  for (const label of document.querySelectorAll(".axis .left")) text(label, `${span(spanS)} ago`);
  showEpochs(seen, from, now);
  const leads = now.status.role === "leader";
  const leader = now.leader_id;
  const others = leader === null ? "Nobody leads." : `Only the leader can time this: see the page of node ${leader}.`;
  plot("commits", seen, from, ["commits_per_s"], fromZero, rate, "Nothing was committed yet.");
  plot("latency", seen, from, ["commit_ms", "commit_p99_ms"], byDecades, duration, leads ? "Nothing was appended." : others);
  if (!leads && leader !== null && seen.some((one) => one.commit_ms !== null)) {
    text($("latency-now").firstChild, `node ${leader} times it now`);
  }
  plot("sync", seen, from, ["sync_ms"], byDecades, duration, "Nothing was written.");
}

function showEpochs(seen, from, now) {
  const runs = [];
  for (const one of seen) {
    const last = runs.at(-1);
    if (last) last.to = one.at_s;
    if (!last || last.leader !== one.leader_id || (one.leader_id !== null && last.epoch !== one.epoch)) {
      runs.push({ leader: one.leader_id, epoch: one.epoch, from: one.at_s, to: one.at_s });
    }
  }
  if (runs.length) runs.at(-1).to = now.now_s;
  const blank = runs.length ? runs[0].from - from : past.spanS;
  each($("epochs"), [null, ...runs], () => make("li"), (item, run) => {
    const seconds = run === null ? Math.max(0, blank) : run.to - run.from;
    item.style.flexGrow = Math.max(0.001, seconds);
    const slim = seconds < past.spanS / 12;
    if (run === null) {
      style(item, "blank");
      item.setAttribute("aria-hidden", "true");
      text(item, "");
      return;
    }
    const color = run.leader === null ? "none" : run.epoch % 2 ? "odd" : "";
    style(item, `${color} ${slim ? "slim" : ""}`);
    text(item, run.leader === null ? "no leader" : `node ${run.leader} · epoch ${run.epoch}`);
    const words = `${run.leader === null ? "no leader" : `node ${run.leader} in epoch ${run.epoch}`}`
      + ` from ${clock(now.at_ms - (now.now_s - run.from) * 1000)}, ${span(seconds)}`;
    if (item.title !== words) item.title = words;
  });
  const without = runs.filter((run) => run.leader === null).reduce((sum, run) => sum + run.to - run.from, 0);
  const led = seen.filter((one) => one.leader_id !== null);
  text($("epochs-now"), many(led.length ? seen.at(-1).epoch - led[0].epoch : 0, "new epoch")
    + (without >= 1 ? `, about ${span(without)} without a leader` : ""));
}

// Scales give the height of a value, 0 (bottom) to 100, and the values that get a line.
function fromZero(values) {
  const highest = Math.max(...values, 1e-3);
  const power = 10 ** Math.floor(Math.log10(highest));
  const top = [1, 2, 5, 10].map((step) => step * power).find((step) => step >= highest) || highest;
  return { height: (value) => value / top * 100, lines: [top] };
}

// Times differ by powers of ten: one slow second must not flatten all others.
function byDecades(values) {
  const first = Math.floor(Math.log10(Math.max(0.01, Math.min(...values))));
  const last = Math.max(first + 1, Math.ceil(Math.log10(Math.max(0.01, ...values))));
  const lines = Array.from({ length: last - first + 1 }, (_, at) => 10 ** (first + at));
  const height = (value) => (Math.log10(Math.max(value, lines[0])) - first) / (last - first) * 100;
  return { height, lines: lines.slice(1) };
}

function prepare(box, id) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 1000 100");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  for (const name of ["area", "curve", "second"]) {
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("class", name);
    svg.append(path);
  }
  box.append(make("div", "lines"), svg, make("p", "empty"));
  const axis = make("p", "axis");
  axis.append(make("span", "left"), make("span", "", "now"));
  box.after(axis);
  $(`${id}-now`).append(make("span", "first"), make("span", "second"));
}

// The first field is the curve with an area below; a second one is a thin line.
function plot(id, seen, from, fields, scaled, words, empty) {
  const box = $(id);
  if (!box.firstChild) prepare(box, id);
  const [lines, svg, nothing] = box.children;
  const values = fields.flatMap((field) => seen.map((one) => one[field])).filter((value) => value !== null);
  const has = values.length > 0;
  const scale = has ? scaled(values) : { height: () => 0, lines: [] };
  text(nothing, has ? "" : empty);
  each(lines, scale.lines, () => {
    const line = make("p");
    line.append(make("span"));
    return line;
  }, (line, value) => {
    line.style.bottom = `${scale.height(value)}%`;
    text(line.firstChild, words(value));
  });
  const x = (one) => ((one.at_s - from) / past.spanS * 1000).toFixed(1);
  const path = (part, field) => part.map((one) => `${x(one)} ${(100 - scale.height(one[field])).toFixed(1)}`).join("L");
  const curves = fields.map((field) => split(seen, field).map(
    (part) => `M${path(part, field)}${part.length > 1 ? "" : "h1"}`).join(""));
  const areas = split(seen, fields[0]).map((part) => `M${x(part[0])} 100L${path(part, fields[0])}L${x(part.at(-1))} 100Z`);
  [areas.join(""), ...curves].forEach((d, at) => svg.children[at].setAttribute("d", d));
  const last = seen.at(-1);
  const [now, p99] = fields.map((field) => (last && last[field] !== null ? words(last[field]) : ""));
  const [first, second] = $(`${id}-now`).children;
  text(first, now);
  text(second, p99 ? `p99 ${p99}` : "");
  svg.setAttribute("aria-label", has ? `${now ? `now ${now}, ` : ""}highest ${words(Math.max(...values))}` : empty);
}

// Where nothing was measured, or this node slept, the curve is broken.
function split(seen, field) {
  const parts = [];
  let before = null;
  for (const one of seen) {
    if (one[field] !== null) {
      if (before === null || one.at_s - before.at_s > GAP_S) parts.push([]);
      parts.at(-1).push(one);
    }
    before = one[field] === null ? null : one;
  }
  return parts;
}

// -- asking

async function ask(path) {
  const response = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(RESPONSE_MS) });
  if (!response.ok) throw new Error(`${path}: ${response.status}`);
  return response.json();
}

function asSamples(rows) {
  return rows.map((row) => Object.fromEntries(past.fields.map((field, at) => [field, row[at]])));
}

// The newest samples come with every response; all of them only when some are missing.
async function remember(now) {
  const last = past.samples.at(-1);
  if (last && past.run === now.run) {
    const fresh = asSamples(now.samples);
    if (fresh.length && fresh[0].number <= last.number + 1) {
      past.samples.push(...fresh.filter((one) => one.number > last.number));
      past.samples = past.samples.slice(-past.allS);
      return;
    }
  }
  const history = await ask("history.json");
  past.run = history.run;
  past.fields = history.fields;
  past.allS = history.sample_s * history.samples_max;
  past.samples = asSamples(history.samples);
}

async function look() {
  let now;
  try {
    now = await ask("page.json");
    await remember(now);
  } catch (error) {
    console.warn(String(error));
    const since = lastResponseMs === null ? "" : ` since ${clock(lastResponseMs)}`;
    lamp("off", `no response${since}, trying again`);
    text($("leads"), "This node does not respond");
    text($("said"), "This node does not respond");
    style($("leads"), "lost");
    document.title = "no response · quorumd";
    return;
  }
  for (const show of SECTIONS) show(now);
  lastResponseMs = Date.now();
  lamp("on", "live");
  await lookAtClaims(now);
}

async function lookAtClaims(now) {
  if (performance.now() < claimsAtMs + CLAIMS_MS) return;
  claimsAtMs = performance.now();
  try {
    showClaims(await ask("claims.json"), now.at_ms);
  } catch (error) {
    // Whether the node responds at all, the next look says.
    console.warn(String(error));
  }
}

const SECTIONS = [showHead, showFindings, showReplicas, showPast, showVoters, showLog, showSnapshots,
  showAccess, showAbout];

function lamp(state, words) {
  style($("lamp"), `lamp ${state}`);
  style($("main"), state === "on" ? "" : "stale");
  text($("live"), words);
}

function sleep(ms) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    wake = () => { clearTimeout(timer); resolve(); };
  });
}

// A page that nobody sees asks nothing.
async function follow() {
  for (;;) {
    const begun = performance.now();
    if (!paused && !document.hidden) await look();
    await sleep(Math.max(POLL_MS - (performance.now() - begun), 100));
  }
}

$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", String(paused));
  text($("pause"), paused ? "Go on" : "Pause");
  if (paused) { style($("lamp"), "lamp"); text($("live"), "paused"); }
  wake();
});
document.addEventListener("visibilitychange", () => wake());
follow();
