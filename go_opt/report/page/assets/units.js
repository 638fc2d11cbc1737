"use strict";
// Numbers as go-opt prints them.

const NANOSECOND = 1e-9;

function digits(value) {
  return String(Number(value.toPrecision(4)));
}

function formatDuration(seconds) {
  for (const [unit, scale] of [["s", 1], ["ms", 1e3], ["us", 1e6]]) {
    if (seconds * scale >= 1) return `${digits(seconds * scale)} ${unit}`;
  }
  return `${digits(seconds * 1e9)} ns`;
}

function formatBytes(size) {
  for (const [unit, scale] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
    if (size >= scale) return `${digits(size / scale)} ${unit}`;
  }
  return `${size} B`;
}

function formatFlops(flops) {
  for (const [unit, scale] of [["TFLOP", 1e12], ["GFLOP", 1e9], ["MFLOP", 1e6], ["kFLOP", 1e3]]) {
    if (flops >= scale) return `${digits(flops / scale)} ${unit}`;
  }
  return `${digits(flops)} FLOP`;
}

function formatShare(share) {
  return `${Math.round(share * 100)}%`;
}

function counted(count, what) {
  return `${count.toLocaleString("en-US")} ${what}${count === 1 ? "" : "s"}`;
}
