"use strict";
// The samples of the page. Texts of models and data sets are hostile: set them with `textContent` or `append` only.

const AT_ONCE = 100; // samples in the list until the user asks for more
const byId = (id) => document.getElementById(id);
const blocks = {};

/** Return the value of a block of compressed JSON (a promise). A block is read once. */
function read(id) {
  if (!blocks[id]) {
    const bytes = Uint8Array.from(atob(byId(id).textContent), (character) => character.charCodeAt(0));
    blocks[id] = new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
  }
  return blocks[id];
}

/** Return a new element. Children are nodes or texts. */
function make(tag, ...children) {
  const element = document.createElement(tag);
  element.append(...children);
  return element;
}

/** Return a sample that opens with a click. */
function entry(sample, images) {
  const heading = [`#${sample.doc_id}`, sample.exit, sample.answer, sample.question].filter(Boolean).join(" · ");
  const facts = Object.entries(sample.facts).map(([name, text]) => make("p", `${name}: ${text}`));
  const calls = sample.calls.flatMap((call) => [make("h4", call.about), make("pre", call.text)]);
  const element = make("details", make("summary", heading), make("pre", sample.question), ...facts, ...calls);
  if (images[sample.image]) {
    const image = make("img");
    image.src = `data:image/webp;base64,${images[sample.image]}`;
    image.alt = "The document's image, reduced";
    element.firstChild.after(image);
  }
  return element;
}

/** Append some of the chosen samples to the list, with a button for the next ones. */
function append(chosen, first, images) {
  byId("list").append(...chosen.slice(first, first + AT_ONCE).map((sample) => entry(sample, images)));
  if (chosen.length <= first + AT_ONCE) return;
  const more = make("button", "More");
  more.onclick = () => { more.remove(); append(chosen, first + AT_ONCE, images); };
  byId("list").append(more);
}

/** Apply the filters. */
async function search() {
  const { value: run } = byId("run"), { value: exit } = byId("exit"), { value: answer } = byId("answer");
  const text = byId("text").value.toLowerCase();
  const [samples, images] = await Promise.all([read(`samples-${run}`), read("images")]);
  if (run !== byId("run").value) return; // a newer search is under way
  const textOf = ({ question, facts, calls }) => [question, ...Object.values(facts), ...calls.map((call) => call.text)].join("\n");
  const chosen = samples.filter((sample) => (!exit || sample.exit === exit) && (!answer || sample.answer === answer)
    && (!text || textOf(sample).toLowerCase().includes(text)));
  byId("number").value = `${chosen.length} of ${samples.length} samples`;
  byId("list").replaceChildren();
  append(chosen, 0, images);
}

if (byId("filters")) {
  byId("filters").addEventListener("input", search);
  search();
}
