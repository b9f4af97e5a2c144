// The map of layers × experts, and the path of each token through the layers. Experts of a token are [layers][k], the
// one with the largest gate first.
import { colour } from "./draw.js";

const DENSE = 24, PATH_PX = 8;

// A colour for each expert; neighbours differ even where there are many.
export const hue = (expert) => `hsl(${(expert * 137.508 + 200) % 360} 62% 56%)`;

export class ExpertMap {
  // `pointed` hears of the layer whose name was pressed, null where none is any more.
  constructor(box, pressed) {
    this.box = box;
    this.pressed = pressed;
    this.layer = null;
    this.reset([]);
  }

  // `shape`: experts of each layer.
  reset(shape) {
    this.shape = shape;
    this.counts = shape.map((experts) => new Array(experts).fill(0));
    this.most = 0;
    this.layer = this.layer != null && this.layer < shape.length ? this.layer : null;
    this.build();
  }

  // The map grows where a token names a layer or an expert that nobody announced.
  fit(experts) {
    const shape = experts.map((chosen, layer) => Math.max(this.shape[layer] ?? 0, ...chosen.map((one) => one + 1)));
    if (shape.length <= this.shape.length && shape.every((many, layer) => many <= this.shape[layer])) return;
    const before = this.counts;
    this.reset(shape);
    before.forEach((row, layer) => row.forEach((count, expert) => { this.counts[layer][expert] = count; }));
  }

  add(experts) {
    this.fit(experts);
    for (const [layer, chosen] of experts.entries()) for (const expert of chosen) this.most = Math.max(this.most, ++this.counts[layer][expert]);
  }

  build() {
    const wide = Math.max(0, ...this.shape), dense = wide > DENSE;
    this.box.classList.toggle("dense", dense);
    this.box.style.gridTemplateColumns = `auto repeat(${wide}, minmax(${dense ? 6 : 16}px, 1fr))`;
    this.box.style.setProperty("--tall", `${this.shape.length > 20 || dense ? 12 : 20}px`);
    const heads = Array.from({ length: wide }, (_, expert) => {
      const made = element("div", "head", dense && expert % 8 ? "" : expert);
      made.style.setProperty("--hue", hue(expert));
      return made;
    });
    this.spots = this.shape.map((experts) => Array.from({ length: experts }, () => element("div", "spot", "")));
    const rows = this.spots.flatMap((spots, layer) => [this.name(layer), ...spots, ...Array.from({ length: wide - spots.length }, () => element("div", "", ""))]);
    this.box.replaceChildren(...(this.shape.length ? [element("div", "", ""), ...heads, ...rows] : []));
  }

  name(layer) {
    const made = element("button", "row", `layer ${layer}`);
    made.type = "button"; made.dataset.layer = layer; made.setAttribute("aria-pressed", layer === this.layer);
    made.addEventListener("click", () => {
      this.layer = this.layer === layer ? null : layer;
      for (const one of this.box.querySelectorAll(".row")) one.setAttribute("aria-pressed", Number(one.dataset.layer) === this.layer);
      this.pressed(this.layer);
    });
    return made;
  }

  // Colours by count; `experts` of one token are ringed.
  draw(experts) {
    for (const [layer, spots] of this.spots.entries()) {
      for (const [expert, spot] of spots.entries()) {
        const count = this.counts[layer][expert], place = experts?.[layer]?.indexOf(expert) ?? -1;
        spot.className = `spot${place >= 0 ? " chosen" : ""}${place === 0 ? " first" : ""}`;
        spot.style.background = count ? colour(count / this.most)[0] : "";
        spot.title = `layer ${layer}, expert ${expert}: ${count} tokens`;
      }
    }
  }
}

// Tokens from left to right, the last ones that there is room for; layers from top to bottom.
export function drawPath(canvas, tokens, shape) {
  const ratio = devicePixelRatio || 1, width = canvas.clientWidth || 400, layers = shape.length;
  const tall = layers ? Math.max(4, Math.min(14, Math.floor(220 / layers))) : 120, height = layers ? layers * tall : tall;
  canvas.style.height = `${height}px`;
  canvas.width = width * ratio; canvas.height = height * ratio;
  const context = canvas.getContext("2d"), shown = tokens.slice(-Math.floor(width / PATH_PX));
  context.scale(ratio, ratio);
  for (const [x, experts] of shown.entries()) {
    for (const [layer, chosen] of experts.entries()) {
      context.fillStyle = hue(chosen[0]);
      context.fillRect(x * PATH_PX, layer * tall, PATH_PX - 1, tall - 1);
    }
  }
}

function element(tag, kind, words) {
  const made = document.createElement(tag);
  made.className = kind; made.textContent = words;
  return made;
}
