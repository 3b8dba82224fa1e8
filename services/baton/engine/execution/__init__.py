"""From a planned pass to tokens: launching, collecting, judging the device."""
