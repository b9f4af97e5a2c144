// Drawing: a line chart, the heat map, tables. No state but the colours; text only, never markup.
const SVG = "http://www.w3.org/2000/svg";
const DARK = [[32, 44, 57], [31, 94, 118], [47, 150, 143], [150, 190, 90], [246, 211, 101]];
const LIGHT = [[232, 240, 244], [163, 208, 219], [92, 172, 184], [45, 126, 146], [22, 74, 100]];
let stops = matchMedia("(prefers-color-scheme: dark)").matches ? DARK : LIGHT;

export const colours = (dark) => { stops = dark ? DARK : LIGHT; };
export const scaleStops = () => stops.map((c) => `rgb(${c})`).join(", ");

export function colour(part) {
  const x = Math.max(0, Math.min(1, part)) * (stops.length - 1), i = Math.min(stops.length - 2, Math.floor(x));
  const rgb = stops[i].map((c, k) => Math.round(c + (stops[i + 1][k] - c) * (x - i)));
  const bright = (0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2]) > 140;
  return [`rgb(${rgb})`, bright ? "#10202b" : "#f2f7fa"];
}

function svg(tag, attributes, words) {
  const made = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (words !== undefined) made.textContent = words;
  return made;
}

// The round step of an axis from 0 that has at most five of them up to `most`.
function stepOf(most) {
  const size = 10 ** Math.floor(Math.log10(most / 5));
  return [1, 2, 2.5, 5, 10].map((m) => m * size).find((m) => m * 5 >= most * 0.999);
}

// Points are [Date, number | null, why]; a gap breaks the line, and is filled where there is a `why`. `target` is drawn
// dashed, points above it are marked.
export function lineChart(box, points, write, target) {
  const width = box.clientWidth || 600, height = box.clientHeight || 190, left = 62, bottom = 20, top = 8, right = 10;
  const known = points.filter(([, v]) => v != null), root = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  if (!known.length && !points.some(([, , why]) => why)) {
    root.append(svg("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, "no window yet"));
    box.replaceChildren(root);
    return;
  }
  const highest = Math.max(...known.map(([, v]) => v), target ?? 0, 1e-9) * 1.03;
  const step = stepOf(highest), most = step * Math.ceil(highest / step - 1e-9);
  const first = +points[0][0], last = Math.max(+points[points.length - 1][0], first + 1);
  const x = (t) => left + (width - left - right) * (+t - first) / (last - first), y = (v) => height - bottom - (height - bottom - top) * v / most;
  for (let i = 0; i * step <= most * 1.001; i++) {
    root.append(svg("line", { class: "grid", x1: left, x2: width - right, y1: y(i * step), y2: y(i * step) }));
    root.append(svg("text", { x: left - 8, y: y(i * step) + 4, "text-anchor": "end" }, i ? write(i * step) : "0"));
  }
  const clock = (t) => new Date(t).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
  root.append(svg("text", { x: left, y: height - 4 }, clock(first)), svg("text", { x: width - right, y: height - 4, "text-anchor": "end" }, clock(last)));
  points.forEach(([t, , why], i) => {
    if (!why) return;
    const from = x(points[Math.max(0, i - 1)][0]), band = svg("rect", { class: "unanswered", x: from, y: top, width: Math.max(2, x(t) - from), height: height - bottom - top });
    band.append(svg("title", {}, why));
    root.append(band);
  });
  for (const run of runs(points)) {
    const path = run.map(([t, v], i) => `${i ? "L" : "M"}${x(t).toFixed(1)} ${y(v).toFixed(1)}`).join("");
    root.append(svg("path", { class: "area", d: `${path}L${x(run[run.length - 1][0]).toFixed(1)} ${y(0)}L${x(run[0][0]).toFixed(1)} ${y(0)}Z` }), svg("path", { class: "line", d: path }));
  }
  if (target != null) root.append(svg("line", { class: "slo", x1: left, x2: width - right, y1: y(target), y2: y(target) }));
  for (const [t, v] of known) if (target != null && v > target) root.append(svg("circle", { class: "over", cx: x(t), cy: y(v), r: 3 }));
  box.replaceChildren(root);
}

function runs(points) {
  const found = [[]];
  for (const point of points) {
    if (point[1] == null) found.push([]);
    else found[found.length - 1].push(point);
  }
  return found.filter((run) => run.length);
}

// One row a layer: its segment, then its experts; the last segment has a row of its own.
export function heat(box, nodes, { value, write, most, late, point }) {
  const layers = Math.max(0, ...nodes.filter((n) => n.kind !== "ingress").map((n) => n.layer + 1));
  const wide = Math.max(0, ...nodes.filter((n) => n.kind === "expert").map((n) => n.expert + 1));
  const cells = [], byPlace = new Map(nodes.map((n) => [`${n.kind} ${n.layer} ${n.expert}`, n]));
  box.style.gridTemplateColumns = `auto minmax(86px, 130px) repeat(${wide}, minmax(${wide > 24 ? 12 : 26}px, 1fr))`;
  box.classList.toggle("dense", wide > 24);
  cells.push(label("", "head"), label("segment", "head"), ...Array.from({ length: wide }, (_, j) => label(wide > 24 && j % 8 ? "" : j, "head")));
  for (let i = 0; i < layers; i++) {
    const segment = byPlace.get(`segment ${i} null`);
    cells.push(label(i < layers - 1 || byPlace.has(`expert ${i} 0`) ? `layer ${i}` : "head", "row"));
    cells.push(segment ? segmentCell(segment, late, point) : label("", "row"));
    for (let j = 0; j < wide; j++) {
      const node = byPlace.get(`expert ${i} ${j}`);
      cells.push(node ? expertCell(node, value(node), write, most, late, point) : label("", ""));
    }
  }
  box.replaceChildren(...cells);
}

function label(words, kind) {
  const made = document.createElement("div");
  made.className = kind; made.textContent = words;
  return made;
}

function cell(node, words, late, point) {
  const made = label(words, `cell ${late(node) ? "late" : ""}`);
  made.tabIndex = 0; made.title = node.node; made.dataset.node = node.node;
  for (const event of ["pointerenter", "focus"]) made.addEventListener(event, () => point(node));
  return made;
}

function small(words) {
  const made = document.createElement("small");
  made.textContent = words;
  return made;
}

function segmentCell(node, late, point) {
  const made = cell(node, `×${node.replicas ?? "–"}`, late, point);
  made.classList.add("segment");
  return made;
}

function expertCell(node, found, write, most, late, point) {
  const made = cell(node, found == null ? "–" : write(found), late, point);
  if (node.replicas > 1) made.append(small(`×${node.replicas}`));
  if (found != null) [made.style.background, made.style.color] = colour(most > 0 ? found / most : 0);
  return made;
}

// Cells are [words, class, element]; an element other than the cell itself is put inside it.
export function table(element, rows, empty) {
  const body = element.tBodies[0], columns = element.tHead.rows[0].cells.length;
  body.replaceChildren(...(rows.length ? rows.map((row) => tr(row)) : [none(empty, columns)]));
}

function tr(row) {
  const made = document.createElement("tr");
  for (const [words, kind = "", inside] of row) {
    const td = made.insertCell();
    const target = inside ? td.appendChild(document.createElement("span")) : td;
    target.textContent = words; target.className = kind;
  }
  return made;
}

function none(words, columns) {
  const made = document.createElement("tr"), td = made.insertCell();
  td.colSpan = columns; td.className = "none"; td.textContent = words;
  return made;
}
