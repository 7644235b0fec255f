"""Whether two arrays are the same."""

import numpy as np


def difference(found, wanted, rtol, atol):
    """What differs, or None."""
    found, wanted = np.asarray(found), np.asarray(wanted)
    if found.shape != wanted.shape:
        return f"shape {list(found.shape)}, not {list(wanted.shape)}"
    if wanted.dtype.kind in "OUS":
        text = np.vectorize(lambda v: v.decode() if isinstance(v, bytes) else str(v), otypes=[object])
        same = wanted.size == 0 or (text(found) == text(wanted)).all()
        return None if same else "other texts"
    if found.dtype != wanted.dtype:
        return f"type {found.dtype}, not {wanted.dtype}"
    if wanted.dtype.kind in "biu":
        return None if np.array_equal(found, wanted) else "other values"
    # What is no plain float of numpy's (bfloat16) is widened.
    if wanted.dtype.kind not in "fc":
        found, wanted = found.astype(np.float32), wanted.astype(np.float32)
    try:
        np.testing.assert_allclose(found, wanted, rtol, atol)
    except AssertionError as error:
        lines = [line.strip() for line in str(error).splitlines() if "difference" in line]
        return "; ".join(lines[:2]) or "other values"
    return None
