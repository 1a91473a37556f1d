// fetch.js ADDRESS DIRECTORY: everything that the page at an address loads, and what that loads, into a directory.
'use strict';

const fs = require('node:fs');
const path = require('node:path');

const [address, directory] = process.argv.slice(2);
const seen = new Set();

/** What a file names, relative to where it is. */
function named(at, text) {
  const pattern = at.endsWith('.js') ? /\bfrom\s*["']([^"']+)["']/g : /\b(?:src|href)="([^"]+)"/g;
  return [...text.matchAll(pattern)].map(([, name]) => new URL(name, new URL(at, address)).pathname);
}

async function get(at) {
  if (seen.has(at)) return;
  seen.add(at);
  const answer = await fetch(new URL(at, address));
  if (!answer.ok) throw new Error(`${at}: ${answer.status}`);
  const text = await answer.text();
  const file = path.join(directory, at === '/' ? 'index.html' : at);
  fs.mkdirSync(path.dirname(file), { recursive: true });
  fs.writeFileSync(file, text);
  for (const next of named(at, text)) await get(next);
}

fs.mkdirSync(directory, { recursive: true });
fs.writeFileSync(path.join(directory, 'package.json'), '{"type": "module"}\n');
get('/').catch((error) => {
  console.error(error);
  process.exit(1);
});
