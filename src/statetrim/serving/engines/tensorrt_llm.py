"""TensorRT-LLM, of which too little is known to choose it."""

from .engine import Engine

ENGINE = Engine(name="TensorRT-LLM", command="trtllm-serve {model}")
