"use strict";
// Shared by the scripts of the page. Texts of models and data sets are hostile: set them with `textContent` only.

const NONCE = document.currentScript.nonce; // scripts without it are refused

const byId = (id) => document.getElementById(id);

/** Return a new element. Attributes that are undefined are left out; children are nodes or texts. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function bytesOf(base64) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

/** Return the promise of a block's text, or null if the page lacks the block. A block is read once. */
function textOf(name) {
  const block = byId(`block-${name}`);
  if (block === null) return null;
  const packed = new Blob([bytesOf(block.textContent)]);
  block.remove(); // its text needs memory
  return new Response(packed.stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

/** Return the value of a block, or null. */
async function valueOf(name) {
  const text = await textOf(name);
  return text === null ? null : JSON.parse(text);
}

/** Let the browser draw and answer the user before the next piece of work. */
const pause = () => new Promise((done) => setTimeout(done, 0));

const whole = new Intl.NumberFormat("en");
const count = (number) => whole.format(number);

function seconds(ms) {
  if (ms === null) return "no time";
  if (ms < 1) return "< 1 ms";
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(ms < 10000 ? 2 : 1)} s`;
}

function option(value, name) {
  return make("option", { value }, name);
}
