"""Word lists that the task generators draw from. Nothing here chooses; a list's order is part of the recipe.

Changing a list changes every generated sample, and with them the held-out rows.
"""


def words(text: str) -> tuple[str, ...]:
    """The words of a text, for lists that read better as one."""
    return tuple(text.split())


FIRST_NAMES = words(
    "Ada Amir Anna Ben Bruno Carla Chen Clara Dana David Elif Emma Erik Farah Felix Gina Hana Hugo Ida Iris "
    "Ivan Jana Jonas Julia Kai Karim Lara Lena Leo Lucas Maria Marta Max Mila Mina Nadia Nils Nina Noah Olga "
    "Omar Oscar Paul Petra Rami Rosa Ruth Sara Simon Sofia Tara Theo Tom Uma Vera Viktor Wei Yara Yusuf Zoe"
)

LAST_NAMES = words(
    "Adler Bauer Becker Berg Blake Brandt Cole Costa Cruz Dahl Diaz Dunn Eklund Evans Farrell Fischer Ford Fox "
    "Garcia Grant Haas Hale Hansen Hart Hayes Holm Hughes Ito Jansen Keller Kim Klein Kovac Kumar Lang Larsen "
    "Lopez Lund Malik Mason Meyer Moreno Nash Novak Okafor Olsen Ortiz Park Patel Perez Quinn Reed Rossi Ruiz "
    "Sato Shaw Silva Stone Tanaka Torres Vance Vogel Walsh Weber West Wolf Wood Young Zhang Ziegler"
)

PLACES = words(
    "Alden Ashby Barlow Birchfield Blackrock Brookside Carden Clayton Coldwater Crestwood Dalby Dunmore Easton "
    "Elmsford Fairview Farnham Glenrock Greenhill Halden Hartley Harwick Hillcrest Ironbridge Kelby Kingsford "
    "Lakewood Linden Longport Marbury Millbrook Newgate Norwick Oakham Oldbury Orchard Penfield Pinehurst "
    "Queensbury Ravenhill Redcliff Ridgeway Rockport Saltby Shelford Southgate Stanton Stonebridge Summerfield "
    "Thornbury Tilbury Upton Valebrook Waverly Westbrook Whitby Windham Woodstock Wyndale Yarrow Yorkfield"
)

DAYS = words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")

MONTHS = words("January February March April May June July August September October November December")

GOODS = (
    "boxes of tiles",
    "bags of cement",
    "crates of apples",
    "rolls of cable",
    "barrels of oil",
    "sacks of rice",
    "cartons of paper",
    "pallets of bricks",
    "cases of lamps",
    "drums of paint",
    "bundles of pipes",
    "crates of glass",
)

COMPANIES = (
    "Birch & Sons",
    "Northern Foods",
    "Blue Harbour",
    "Delta Works",
    "Silver Line",
    "Hilltop Farms",
    "Apex Supply",
    "Green Valley",
    "Union Steel",
    "Harbour Trade",
    "Crown Motors",
    "Summit Glass",
)

TEAMS = words(
    "Falcons Otters Wolves Hawks Bears Lions Tigers Sharks Rovers Comets Ravens Foxes Eagles Bulls Storms Pilots"
)

MACHINES = words("pump press mixer boiler crane saw oven conveyor")

FAULTS = (
    "a worn seal",
    "a blown fuse",
    "a loose belt",
    "a cracked valve",
    "a dirty filter",
    "a broken sensor",
)

GROUPS = words("budget safety design hiring events garden library")

DEVICES = words("printer router scanner camera tablet phone")

REMEDIES = ("a restart", "new batteries", "a reset", "another cable", "an update")

ANIMALS = words("deer foxes hares owls herons badgers swans otters")
