"""Operations by torch itself, on any device."""
