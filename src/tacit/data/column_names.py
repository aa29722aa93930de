"""Names that columns often have, as regular expressions: what a column with this name probably is."""

LABELS = (
    r"(label|target|outcome|class|y|ill|died|dead|death|mortality|survived|readmitted|disease|diagnosis|income|"
    r"default|churn|relapse|status|event|response)"
)
SITES = r"(hospital|hospital_?id|site|center|centre|clinic|station|ward|unit|inst|institution|bank|branch)"
PEOPLE = (
    r"(patient|person|subject|individual|participant|customer|client|member|case|user|student|pupil|employee|respondent|resident|mrn|patient_?nbr)"
    r"(_?(id|no|nr|nbr|number))?"
)
# what tells a person's name, or how to reach them, apart from a product's or a hospital's name
PRIVATE = (
    r"(.*_)?((first|last|middle|maiden|given|family|full|birth)_?names?|forenames?|surnames?|initials|e_?mail"
    r"(_?address)?|(tele)?phone(_?(no|nr|number))?|mobile|fax|ssn|social_?security(_?(no|nr|number))?|street"
    r"(_?address)?|address(_?[12])?|iban|passport(_?(no|nr|number))?)"
)
# columns that are hardly the outcome: of two values, or what a row is about
NEVER_LABELS = (
    r"(sex|gender|male|female|lat(itude)?|lon(g|gitude)?|(date_of_)?birth(_?da(y|te))?|dob|"
    r".*[_. -](code|zip)|zip(_?code)?|post(al)?_?code)"
)
# an event, and the time until it or until the last look: together they are survival data
EVENTS = r"(.*[_.])?(status|event|observed|cens[a-z]*|died|dead|death|mortality|relapse)([_.].*)?"
OTHER_EVENTS = r"(.*[_.])?(event|cens[a-z]*|died|dead|death|mortality)"
DURATIONS = (
    r"(.*[_.])?(time|duration|(fu|surv|rec|rfs?|os|pfs|dfs)_?time|tte|follow_?up|survival)"
    r"([_.]?(in[_.])?(time|days|weeks|months|years))?|lenfol|diff_?days|"
    r"(days|weeks?|months)|(.*[_.])?days?[_.](to|until)[_.].*"
)
# the day of the event, or of the last look: known only afterwards
EVENT_DAYS = (
    r"(.*[_.])?(death|died|dead|deceased|event|end|exit|relapse|rec(urrence)?|progression|last|follow_?up|fu|"
    r"discharge|cens(or(ed|ing)?)?)[_. -]?(da(y|te)|time|seen|contact|visit)"
)
YEARS = r"(.*[_. -])?(year|yr)"
# an identifier of a row or of what the row is about, without saying of what
NUMBERED = r"(id|uuid|nr|no|number|seqn|pid|record_?id)"
# numbers that are names: their order and distances say nothing
CODES = (
    r".*code\d?|(.*[_. -])?(id|zip|zip_?code|post(al)?_?code|plz|icd(9|10)?)|"
    r".*(unit|store|shop|site|dept|department|school|state|county|district|region|family|household|firm|company|"
    r"village|hospital|clinic|station|branch|bank|product|provider|physician|doctor)_?(id|code)"
)
