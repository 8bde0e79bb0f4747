"""What a person sees of `merge`."""


def show_merged(parts: int, where: str) -> None:
    print(f"{parts} statistics added, written to {where}")
