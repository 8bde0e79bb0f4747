"""A user's script, which mypy reads and nothing runs: the types of public names, and calls that a
type checker must refuse (mypy reports an ignored error that is none)."""

from typing import assert_type

import statetrim as st

model = st.open("MODEL")
plan = st.select(model, "l1", to="64x64")
assert_type(model, st.Checkpoint)
assert_type(plan, st.Plan)
assert_type(st.prune(model, plan, "SMALL"), st.Checkpoint)
assert_type(st.__version__, str)
st.trim("M", out="o", to=0.5, for_="vllm", tokens="64k")
st.trim("M", to="64x64", out="o", limit=3)
st.recover("M", teacher="T", text="t", out="o", rank=8, layers=[0])
st.slect()  # type: ignore[attr-defined]
st.trim("M", out="o", kepe=0.5)  # type: ignore[call-arg]
st.trim("M", out="o", limit="many")  # type: ignore[arg-type]
st.TrimOptions(kepe=0.5)  # type: ignore[call-arg]
st.recover("M", text="t", out="o", ranks=8)  # type: ignore[call-arg]
st.recover("M", text="t", out="o", rank="8")  # type: ignore[arg-type]
st.RecoverOptions(ranks=8)  # type: ignore[call-arg]
