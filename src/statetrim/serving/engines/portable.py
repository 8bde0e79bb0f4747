"""The models of statetrim itself, without a server: the command loads the model."""

from .engine import Engine

ENGINE = Engine(
    name="statetrim.portable",
    command='python -c "import sys, statetrim; statetrim.load(sys.argv[1])" {model}',
)
