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

/** Return an option of a menu. */
function option(value, label) {
  const element = make("option", label);
  element.value = value;
  return element;
}

/** Replace the options of a menu, and keep the choice if it is still there. */
function fill(menu, options) {
  const { value } = menu;
  menu.replaceChildren(...options);
  menu.value = value;
  if (menu.selectedIndex < 0) menu.selectedIndex = 0;
}

/** Return a paragraph with the methods that are right on a document, and those that are wrong. */
function others(documentId, right) {
  const named = (is) => Object.keys(right).filter((name) => right[name][documentId] === is).join(", ") || "none";
  return make("p", make("b", "right: "), named(true), make("b", " · wrong: "), named(false));
}

/** Return a sample that opens with a click. */
function entry(sample, images, right) {
  const heading = [`#${sample.doc_id}`, sample.exit, sample.answer, sample.question].filter(Boolean).join(" · ");
  const checks = sample.checks.length ? [make("p", make("b", "why this exit: "), sample.checks.join(" · "))] : [];
  const facts = Object.entries(sample.facts).map(([name, text]) => make("p", make("b", `${name}: `), text));
  const calls = sample.calls.flatMap((call) => [make("h4", call.about), make("pre", call.text)]);
  const element = make("details", make("summary", heading), make("pre", sample.question), ...checks, ...facts);
  element.append(others(sample.doc_id, right), ...calls);
  if (images[sample.image]) {
    const image = make("img");
    image.src = `data:image/webp;base64,${images[sample.image]}`;
    image.alt = "The document's image, reduced";
    element.firstChild.after(image);
  }
  return element;
}

/** Append some of the chosen samples to the list, with a button for the next ones. */
function append(chosen, first, ...rest) {
  byId("list").append(...chosen.slice(first, first + AT_ONCE).map((sample) => entry(sample, ...rest)));
  const left = chosen.length - first - AT_ONCE;
  if (left <= 0) return;
  const more = make("button", `Show ${Math.min(left, AT_ONCE)} more of ${left}`);
  more.onclick = () => { more.remove(); append(chosen, first + AT_ONCE, ...rest); };
  byId("list").append(more);
}

/** Fill the menus of a run: its exits, and who is right. */
function fillMenus(run, samples, right) {
  const exits = [...new Set(samples.map((sample) => sample.exit))].filter(Boolean).sort();
  fill(byId("exit"), [option("", "all"), ...exits.map((exit) => option(exit, exit))]);
  const pairs = Object.keys(right).filter((name) => name !== run.name).map((name) => {
    const group = make("optgroup", option(`true ${name}`, `${name} right, this wrong`), option(`false ${name}`, `this right, ${name} wrong`));
    group.label = `against ${name}`;
    return group;
  });
  fill(byId("answer"), [option("", "all"), option("right", "this right"), option("wrong", "this wrong"), ...pairs]);
}

/** Return whether a sample is one of those that the menu of answers asks for. */
function isAnswered(sample, answer, right) {
  if (["", "right", "wrong"].includes(answer)) return !answer || sample.answer === answer;
  const [, other, name] = /^(true|false) (.*)$/s.exec(answer);
  return right[name][sample.doc_id] === (other === "true") && sample.answer === (other === "true" ? "wrong" : "right");
}

/** Apply the filters. */
async function search() {
  const { value: number } = byId("run");
  const [{ endings, samples }, images, all, runs] = await Promise.all([`samples-${number}`, "images", "right", "runs"].map(read));
  if (number !== byId("run").value) return; // a newer search is under way
  const run = runs[number], right = all[run.benchmark];
  if (byId("list").dataset.run !== number) fillMenus(run, samples, right);
  byId("list").dataset.run = number;
  const { value: exit } = byId("exit"), { value: answer } = byId("answer");
  const text = byId("text").value.toLowerCase();
  const textOf = ({ question, facts, calls }) => [question, ...Object.values(facts), ...calls.map((call) => call.text)].join("\n");
  const chosen = samples.filter((sample) => (!exit || sample.exit === exit) && isAnswered(sample, answer, right)
    && (!text || textOf(sample).toLowerCase().includes(text)));
  byId("number").value = `${chosen.length} of ${samples.length} samples`;
  byId("ending").textContent = endings.length ? `Each question ends with: ${endings.join(" Or: ")}` : "";
  byId("list").replaceChildren();
  append(chosen, 0, images, right);
}

if (byId("filters")) {
  byId("filters").addEventListener("input", search);
  search();
}
