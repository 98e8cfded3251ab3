"""chromadb: its embedding functions, and a search in a collection."""

import chromadb
from chromadb.api.types import EmbeddingFunction
from chromadb.utils.embedding_functions import OllamaEmbeddingFunction, OpenAIEmbeddingFunction
from task import EMBEDDING_MODEL, TEXTS, URL, check_vectors, run


def embeddings_embeddings() -> None:
    _search(OpenAIEmbeddingFunction(api_key="any", api_base=f"{URL}/v1", model_name=EMBEDDING_MODEL))


def ollama_embeddings() -> None:
    _search(OllamaEmbeddingFunction(url=URL, model_name=EMBEDDING_MODEL))


def _search(function: EmbeddingFunction) -> None:
    check_vectors(function(TEXTS))
    collection = chromadb.EphemeralClient().create_collection("texts", embedding_function=function)
    collection.add(ids=["a", "b"], documents=[TEXTS[0], TEXTS[2]])
    assert collection.query(query_texts=[TEXTS[2]], n_results=1)["ids"] == [["b"]]


run(embeddings_embeddings, ollama_embeddings)
