// A module of the older kind, for `v8_shapes.mjs`.
globalThis.rest('(top level)');

exports.exported = function () {
  return globalThis.rest('exported') + 0;
};
module.exports.exported();
