// HTML templates and hooks. Values in a template are always rendered as text, never as markup.
import { h } from '../vendor/preact.js';
import htm from '../vendor/htm.js';

export { render } from '../vendor/preact.js';
export { useEffect, useRef, useState } from '../vendor/hooks.js';
export const html = htm.bind(h);
