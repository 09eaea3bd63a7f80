"""The operators' references, judged by engines that are not ours."""
