"""Two nodes on two hosts and a link of a given rate: the hand-over, predicted and measured. Linux, root."""
