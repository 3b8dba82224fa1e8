"""The engines that `bench.engines.engine` measures, and what they are asked: children answer line by line."""
