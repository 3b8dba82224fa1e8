"""The engines that `baton bench engine` measures, and what they are asked: children answer line by line."""
