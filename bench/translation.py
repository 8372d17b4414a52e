"""Text encoders across languages: for a noun in another language, rank 60 English nouns by cosine similarity."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from triptych.data.features import encode_blocks
from triptych.encoders import ENCODERS
from triptych.interfaces import Encoder, Source

LANGUAGES = ("English", "French", "German", "Spanish", "Russian")
# Everyday nouns, one row per meaning, in the order of LANGUAGES.
NOUNS = """
dog chien Hund perro собака
cat chat Katze gato кошка
horse cheval Pferd caballo лошадь
bird oiseau Vogel pájaro птица
fish poisson Fisch pez рыба
tree arbre Baum árbol дерево
flower fleur Blume flor цветок
grass herbe Gras hierba трава
river rivière Fluss río река
sea mer Meer mar море
mountain montagne Berg montaña гора
rain pluie Regen lluvia дождь
snow neige Schnee nieve снег
wind vent Wind viento ветер
fire feu Feuer fuego огонь
stone pierre Stein piedra камень
sun soleil Sonne sol солнце
moon lune Mond luna луна
star étoile Stern estrella звезда
cloud nuage Wolke nube облако
house maison Haus casa дом
door porte Tür puerta дверь
window fenêtre Fenster ventana окно
roof toit Dach techo крыша
kitchen cuisine Küche cocina кухня
bed lit Bett cama кровать
table table Tisch mesa стол
chair chaise Stuhl silla стул
clock horloge Uhr reloj часы
key clé Schlüssel llave ключ
knife couteau Messer cuchillo нож
spoon cuillère Löffel cuchara ложка
bread pain Brot pan хлеб
milk lait Milch leche молоко
cheese fromage Käse queso сыр
apple pomme Apfel manzana яблоко
egg œuf Ei huevo яйцо
water eau Wasser agua вода
wine vin Wein vino вино
car voiture Auto coche автомобиль
train train Zug tren поезд
ship bateau Schiff barco корабль
airplane avion Flugzeug avión самолёт
bicycle vélo Fahrrad bicicleta велосипед
road route Straße carretera дорога
bridge pont Brücke puente мост
church église Kirche iglesia церковь
school école Schule escuela школа
book livre Buch libro книга
newspaper journal Zeitung periódico газета
hand main Hand mano рука
eye œil Auge ojo глаз
heart cœur Herz corazón сердце
child enfant Kind niño ребёнок
woman femme Frau mujer женщина
doctor médecin Arzt médico врач
soldier soldat Soldat soldado солдат
king roi König rey король
song chanson Lied canción песня
drum tambour Trommel tambor барабан
"""


def embed(encoder: Encoder, texts: list[str]) -> Tensor:
    """Return the normalised mean of the parts of each text: (N, feature_dim)."""
    sources = [Source("text", text) for text in texts]
    means = {source: parts.mean(dim=0) for block, _ in encode_blocks(encoder, sources) for source, parts in block}
    return F.normalize(torch.stack([means[source] for source in sources]), dim=1)


def translation_recall(encoder: Encoder) -> dict[str, float]:
    """Return, for each language except English, the fraction of nouns whose translation is ranked first."""
    nouns = list(zip(*(line.split() for line in NOUNS.strip().splitlines()), strict=True))
    english = embed(encoder, list(nouns[0]))
    truth = torch.arange(len(english))
    return {
        language: float(((embed(encoder, list(words)) @ english.T).argmax(dim=1) == truth).float().mean())
        for language, words in zip(LANGUAGES[1:], nouns[1:], strict=True)
    }


def main() -> None:
    """Print the recall of each text encoder."""
    for name in ("minilm", "use_multilingual"):
        if reason := ENCODERS[name].unavailable_reason():
            print(f"{name}: {reason}")
            continue
        recalls = translation_recall(ENCODERS[name]().eval())
        figures = "  ".join(f"{language} {100 * recall:.0f}" for language, recall in recalls.items())
        print(f"{name:<18}R@1 in %, to English, 60 nouns: {figures}", flush=True)
