"""Proposes moves of pods that make room (`gpu-hook why --cluster`). Pure; moves no pod."""
