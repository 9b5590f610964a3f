def estimate_text_tokens(text: str) -> int:
    return -(-len(text.encode("utf-8", "surrogatepass")) // 4)
