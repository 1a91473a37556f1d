// Comparison of pages with stored pictures. They are half as wide as the page, which saves space and hides differences of one pixel.
'use strict';

const fs = require('node:fs');
const path = require('node:path');
const { PNG } = require('pngjs');

const DIRECTORY = path.join(__dirname, 'pictures');
const VERSION = path.join(DIRECTORY, 'chromium-version');
/** Largest difference of a colour channel that is not counted. */
const TOLERANCE = 24;
/** Share of pixels that may differ. */
const MAX_DIFFERENT = 0.002;
/** Colours are stored with this many levels per channel, so that the files are small. */
const LEVEL = 8;

/** Halves width and height. */
function halved(picture) {
  const half = new PNG({ width: picture.width >> 1, height: picture.height >> 1 });
  for (let y = 0; y < half.height; y += 1) {
    for (let x = 0; x < half.width; x += 1) {
      for (let channel = 0; channel < 3; channel += 1) {
        const at = (dx, dy) => picture.data[((2 * y + dy) * picture.width + 2 * x + dx) * 4 + channel];
        const mean = (at(0, 0) + at(1, 0) + at(0, 1) + at(1, 1)) / 4;
        half.data[(y * half.width + x) * 4 + channel] = Math.min(255, Math.round(mean / LEVEL) * LEVEL);
      }
      half.data[(y * half.width + x) * 4 + 3] = 255;
    }
  }
  return half;
}

/** Share of pixels that differ; 1 if the sizes differ. */
function difference(a, b) {
  if (a.width !== b.width || a.height !== b.height) return 1;
  let different = 0;
  for (let at = 0; at < a.data.length; at += 4) {
    if ([0, 1, 2].some((channel) => Math.abs(a.data[at + channel] - b.data[at + channel]) > TOLERANCE)) different += 1;
  }
  return different / (a.data.length / 4);
}

const encode = (picture) => PNG.sync.write(picture, { colorType: 2, deflateLevel: 9 });

/** The version of Chromium that made the stored pictures. */
const storedVersion = () => (fs.existsSync(VERSION) ? fs.readFileSync(VERSION, 'utf8').trim() : null);

/** Prepares a new set of pictures. */
function replaceAll(version) {
  fs.rmSync(DIRECTORY, { recursive: true, force: true });
  fs.mkdirSync(DIRECTORY);
  fs.writeFileSync(VERSION, `${version}\n`);
}

/** Stores a screenshot. */
const store = (name, screenshot) => fs.writeFileSync(path.join(DIRECTORY, `${name}.png`), encode(halved(PNG.sync.read(screenshot))));

/** Compares a screenshot with the stored picture. Returns null, or the reason why they are different. */
function compare(name, screenshot) {
  const file = path.join(DIRECTORY, `${name}.png`);
  if (!fs.existsSync(file)) return `${name}: there is no stored picture; UPDATE=1 test/browser/run makes it`;
  const now = halved(PNG.sync.read(screenshot));
  const share = difference(now, PNG.sync.read(fs.readFileSync(file)));
  if (share <= MAX_DIFFERENT) return null;
  const kept = path.join(process.env.WORK, `${name}.png`);
  fs.writeFileSync(kept, encode(now));
  return `${name}: ${(100 * share).toFixed(2)} % of the pixels differ from test/browser/pictures/${name}.png; see ${kept}`;
}

module.exports = { compare, replaceAll, store, storedVersion };
