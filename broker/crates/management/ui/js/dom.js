// What pages are written with: text that is put into a template becomes text in the page, whatever is in it.
import { h } from '../vendor/preact.js';
import htm from '../vendor/htm.js';

export { render } from '../vendor/preact.js';
export { useEffect, useRef, useState } from '../vendor/hooks.js';
export const html = htm.bind(h);
